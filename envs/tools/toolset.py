"""Tools that share state, with one instance per episode.

An environment's ``toolsets`` are prototypes. ``reset`` copies each prototype, and the end of the episode closes the
copy. Invariant: tools never run on a prototype itself, so no episode sees another episode's state.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Self

from turntree.envs.errors import ToolDefinitionError
from turntree.envs.tools.tool import Tool, with_methods


class Toolset:
    '''Base of tools with state: a class whose methods are decorated with ``@tool``.

    Example:
        >>> from turntree.envs import tool
        >>> class Notebook(Toolset):
        ...     def __init__(self):
        ...         self.lines = []
        ...     @tool
        ...     def note(self, line: str) -> int:
        ...         """Write a line down.
        ...
        ...         Args:
        ...             line: What to write
        ...         """
        ...         self.lines.append(line)
        ...         return len(self.lines)
        >>> [tool.name for tool in Notebook.tools]
        ['note']
    '''

    tools: tuple[Tool, ...] = ()  #: the decorated methods, inherited ones first

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tools = with_methods(cls, cls.tools)

    def fresh(self) -> Self:
        """Return the instance for one episode; by default a deep copy of this instance."""
        return copy.deepcopy(self)

    def exposure(self) -> str:
        """Describe parts of this machine that a policy could read through this toolset but must not read.

        Empty by default. turntree checks this before a training run: the run does not start if the policy could read
        the answers of its tasks.
        """
        return ""

    def close(self) -> None:
        """Release the instance's resources, such as processes; may be called several times."""


def all_tools(tools: Sequence[Tool], toolsets: Sequence[Toolset]) -> tuple[Tool, ...]:
    """Return every tool that the model may call.

    Raises:
        ToolDefinitionError: If two tools have the same name.
    """
    offered = (*tools, *(tool for toolset in toolsets for tool in toolset.tools))
    names = [tool.name for tool in offered]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ToolDefinitionError(f"two tools have the name {doubled[0]!r}; give one of them another with @tool(name=)")
    return offered


def owners_of(env: object, tools: Sequence[Tool], toolsets: Sequence[Toolset]) -> dict[str, object]:
    """Return, for tools that are methods: name -> instance, which is ``env`` or one of the episode's toolsets."""
    owners = {tool.name: env for tool in tools if tool.is_method}
    owners.update((tool.name, toolset) for toolset in toolsets for tool in toolset.tools)
    return owners
