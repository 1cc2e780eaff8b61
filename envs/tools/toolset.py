"""Tools that share state, with one instance an episode.

An environment is given a prototype, in its attribute ``toolsets``. Every
``reset`` makes a copy of it, and the end of the episode closes the copy.
Invariant: the prototype itself is never used, so no episode sees another's state.
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

    tools: tuple[Tool, ...] = ()
    """The decorated methods, those of the bases first."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tools = with_methods(cls, cls.tools)

    def fresh(self) -> Self:
        """The instance of one episode; by default a deep copy of this one."""
        return copy.deepcopy(self)

    def exposure(self) -> str:
        """Parts of this machine that a policy could read with this toolset and should not; by default nothing.

        Checked before a training run, which does not start if the answers of its tasks are readable.
        """
        return ""

    def close(self) -> None:
        """Release the instance's resources, such as processes; called once or more."""


def all_tools(tools: Sequence[Tool], toolsets: Sequence[Toolset]) -> tuple[Tool, ...]:
    """Every tool that the model may call.

    Raises:
        ToolDefinitionError: If two tools have one name.
    """
    offered = (*tools, *(tool for toolset in toolsets for tool in toolset.tools))
    names = [tool.name for tool in offered]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise ToolDefinitionError(f"two tools have the name {doubled[0]!r}; give one of them another with @tool(name=)")
    return offered


def owners_of(env: object, tools: Sequence[Tool], toolsets: Sequence[Toolset]) -> dict[str, object]:
    """The instance of each tool that is a method, by the tool's name: ``env``, or an episode's toolset."""
    owners = {tool.name: env for tool in tools if tool.is_method}
    owners.update((tool.name, toolset) for toolset in toolsets for tool in toolset.tools)
    return owners
