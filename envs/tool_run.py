"""One call of the policy -> the tool message that answers it.

What the model did wrong (no such tool, wrong arguments, a ``ToolError``) is
said to it; every other exception passes through to the environment.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from turntree.envs.errors import ToolError
from turntree.envs.memo import ResultMemo
from turntree.envs.message import Message, Role, ToolCall
from turntree.envs.tool import Tool


def run_call(
    call: ToolCall,
    tools: Sequence[Tool],
    *,
    owner: object | None = None,
    memo: ResultMemo | None = None,
    point: str = "",
) -> Message:
    """Run one tool call.

    Args:
        call: What the policy asked for.
        tools: Tools that it may call.
        owner: The environment, for tools that are its methods.
        memo: Answers calls of deterministic tools; ``None`` runs every call.
        point: Where in which episode the call is made, see ``memo.after_call``; empty runs it.

    Returns:
        The tool message: the result, or ``Error: ...``.
    """
    try:
        tool = _find(call.name, tools)
        known = memo if tool.deterministic and point else None
        result = known.get(point) if known is not None else None
        if result is None:
            result = tool.run(call.arguments, owner=owner)
            if known is not None:
                known.put(point, result)
        content = result
    except ToolError as error:
        content = f"Error: {error}"
    return Message(role=Role.TOOL, content=_encodable(content), tool_call_id=call.id, name=call.name)


def _find(name: str, tools: Sequence[Tool]) -> Tool:
    by_name = {tool.name: tool for tool in tools}
    if name in by_name:
        return by_name[name]
    nearest = difflib.get_close_matches(name, by_name, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"the tools are: {', '.join(by_name) or 'none'}"
    raise ToolError(f"there is no tool {name!r}; {hint}")


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON can smuggle in and no tokenizer can encode."""
    return text.encode("utf-8", "replace").decode()
