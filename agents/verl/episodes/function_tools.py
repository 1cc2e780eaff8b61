"""turntree's tools as verl's ``FunctionTool``, for its own tool agent loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turntree.envs.errors import ToolDefinitionError, ToolError
from turntree.envs.tools.tool import Tool


def function_tools(tools: Sequence[Tool]) -> list[Any]:
    """Convert tools for verl, schemas unchanged as far as verl keeps them.

    The model sees its own mistakes as answers; verl runs each call in a thread.

    Args:
        tools: Functions decorated with ``@tool``; verl's are stateless, so neither methods nor tools with a
            ``Context``.

    Raises:
        ToolDefinitionError: If a tool has state.
    """
    from verl.tools.function_tool import FunctionTool
    from verl.tools.schemas import OpenAIFunctionToolSchema

    made = []
    for tool in tools:
        if tool.is_method or tool.takes_context:
            raise ToolDefinitionError(
                f"verl's function tools have no state, but {tool.name!r} does; use an environment"
            )
        schema = OpenAIFunctionToolSchema.model_validate(tool.schema)
        made.append(FunctionTool(name=tool.name, fn=_say(tool), tool_schema=schema))
    return made


def register(tools: Sequence[Tool]) -> None:
    """Add the tools to verl's registry; call it in the file that ``function_tool_path`` names."""
    from verl.tools.function_tool import FUNCTION_TOOL_REGISTRY

    for made in function_tools(tools):
        FUNCTION_TOOL_REGISTRY[made.name] = made


def _say(tool: Tool) -> Any:
    def call(**arguments: Any) -> str:
        try:
            return tool.run(arguments)
        except ToolError as error:
            return f"Error: {error}"

    return call
