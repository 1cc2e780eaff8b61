"""Functions that the policy may call."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MethodType
from typing import Any, overload

from turntree.envs.errors import ToolDefinitionError, ToolError
from turntree.envs.task import Context
from turntree.envs.tools.arguments import check_arguments
from turntree.envs.tools.schema import context_parameter, function_schema, takes_self

__all__ = ["Tool", "ToolError", "tool", "with_methods"]


class Tool:
    """A function with the schema that the model sees.

    Type hints and the Google docstring become the schema; a parameter annotated ``Context`` is hidden from the model
    and filled in by the environment. A tool can still be called like the function that it wraps. For calls of the
    model, ``run`` checks the arguments, waits for the result of a coroutine function, and returns the result as text. A
    subclass that defines its own ``schema`` and ``run`` needs no function.
    """

    schema: dict[str, Any]
    is_method = False
    deterministic = False
    pure = False
    _context: str | None = None

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None, deterministic: bool = False, pure: bool = False
    ) -> None:
        """Wrap ``function``; the arguments are those of ``tool``.

        Raises:
            ToolDefinitionError: If type hints or docstring do not describe every parameter, or a pure tool takes a
                ``Context``.
        """
        functools.update_wrapper(self, function)
        self.function = function
        self.schema = function_schema(function, name=name)
        self.is_method = takes_self(function)
        self._context = context_parameter(function)
        self.deterministic = deterministic or pure
        self.pure = pure
        if pure and self.takes_context:
            raise ToolDefinitionError(
                f"tool {self.name!r} is pure, so its result depends only on its arguments, but it takes a Context; "
                "remove pure=True or the parameter"
            )

    @property
    def name(self) -> str:
        """The name by which the model calls the tool."""
        return str(self.schema["function"]["name"])

    @property
    def takes_context(self) -> bool:
        """Whether the environment fills in a ``Context``."""
        return self._context is not None

    @property
    def properties(self) -> dict[str, Any]:
        """JSON schema of each parameter, by name."""
        properties: dict[str, Any] = self.schema["function"]["parameters"]["properties"]
        return properties

    @property
    def definitions(self) -> dict[str, Any]:
        """Name -> schema that parameters' schemas refer to with ``$ref``."""
        parameters = self.schema["function"]["parameters"]
        return {**parameters.get("definitions", {}), **parameters.get("$defs", {})}

    def run(self, arguments: Mapping[str, Any], *, owner: object | None = None, context: Context | None = None) -> str:
        """Run the tool for the model.

        Args:
            arguments: Keyword arguments as the model passed them.
            owner: The environment or toolset, if the tool is a method.
            context: The episode's context, if the tool takes one.

        Returns:
            The result as text: strings unchanged, anything else as JSON.

        Raises:
            ToolError: If the arguments do not match the schema, or if the tool itself raised ``ToolError``. The
                environment reports this error to the model; any other exception is an infrastructure failure.
            TypeError: If the tool takes a ``Context`` and got no context.
        """
        arguments = check_arguments(self.schema, arguments)
        if self._context is not None:
            if context is None:
                raise TypeError(f"tool {self.name!r} needs a Context: let an environment run it, or pass context=")
            arguments = {**arguments, self._context: context}
        result = self.function(owner, **arguments) if self.is_method else self.function(**arguments)
        if inspect.isawaitable(result):
            result = _awaited(result)
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    @overload
    def __get__(self, instance: None, owner: type) -> Tool: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Tool | MethodType: ...
    def __get__(self, instance: object | None, owner: type) -> Tool | MethodType:
        return self if instance is None or not self.is_method else MethodType(self, instance)

    def __reduce__(self) -> str:
        return self.function.__qualname__  # pickled by name, like a function

    def __repr__(self) -> str:
        return f"Tool({self.name}({', '.join(self.properties)}))"


@overload
def tool(function: Callable[..., Any]) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, deterministic: bool = False, pure: bool = False
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    deterministic: bool = False,
    pure: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    '''Turn a function or a method into a tool.

    Args:
        function: The function; needs type hints and a Google docstring.
        name: Name by which the model calls it, if it differs from the function's.
        deterministic: Set it if the result depends only on the arguments, the task and the earlier turns and calls of
            the episode (no clock, no network, no random numbers), and the tool changes nothing. An environment with a
            ``ResultMemo`` may then return a cached result.
        pure: Set it if, during an episode, the result depends only on the arguments, and the tool changes nothing
            inside or outside the environment. The tool may then run speculatively: before the policy has finished the
            turn that calls it, and even if the policy then makes another call. Implies ``deterministic``.

    Example:
        >>> @tool
        ... def add(a: int, b: int) -> int:
        ...     """Add two numbers.
        ...
        ...     Args:
        ...         a: First number.
        ...         b: Second number.
        ...     """
        ...     return a + b
        >>> add.run({"a": 2, "b": 3})
        '5'
    '''
    if function is None:
        return lambda wrapped: Tool(wrapped, name=name, deterministic=deterministic, pure=pure)
    return Tool(function, name=name, deterministic=deterministic, pure=pure)


def _awaited(result: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await result

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    # This thread already runs the caller's event loop, and asyncio allows only one loop per thread.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, wait()).result()


def with_methods(cls: type, inherited: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """Return the tools of a class: inherited tools, then decorated methods, which replace tools of the same name."""
    methods = [value for value in vars(cls).values() if isinstance(value, Tool) and value.is_method]
    replaced = {method.name for method in methods}
    return (*(tool for tool in inherited if tool.name not in replaced), *methods)
