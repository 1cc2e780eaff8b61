"""Turn the policy's calls into jobs, and their outcomes into tool messages.

A job is a call that is ready to run. The model's errors (an unknown tool, wrong arguments, a ``ToolError``) are
reported to the model. The environment handles every other exception.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from turntree.envs.errors import ToolError, nearest_hint
from turntree.envs.message import Message, Role, ToolCall
from turntree.envs.running.executor import Job, Outcome
from turntree.envs.running.memo import ResultMemo
from turntree.envs.running.pure_calls import PureCall, PureCalls
from turntree.envs.task import Context
from turntree.envs.tools.tool import Tool


def prepare(
    call: ToolCall,
    tools: Sequence[Tool],
    *,
    owners: Mapping[str, object] | None = None,
    context: Context | None = None,
    memo: ResultMemo | None = None,
    point: str = "",
    early: PureCalls | None = None,
) -> Job:
    """Prepare a call for execution.

    Args:
        owners: For a tool that is a method: the tool's name -> the instance on which to call the method.
        context: Passed to tools that take a ``Context``.
        memo: Cache for deterministic tools; ``None`` runs every call.
        point: Key of the call's result in ``memo``, see ``memo.after_call``; empty disables the cache.
        early: Speculative calls of pure tools; ``None`` if no calls are speculative.
    """
    tool = next((tool for tool in tools if tool.name == call.name), None)

    def run() -> str:
        if tool is None:
            hint = nearest_hint(call.name, [tool.name for tool in tools], "the tools are")
            raise ToolError(f"there is no tool {call.name!r}; {hint}")
        cache = memo if tool.deterministic and point else None
        result = cache.get(point) if cache is not None else None
        if result is None:
            execute = partial(tool.run, call.arguments, owner=(owners or {}).get(call.name), context=context)
            result = early.result(call, execute) if early is not None and tool.pure else execute()
            if cache is not None:
                cache.put(point, result)
        return result

    shares_state = tool is not None and (tool.is_method or tool.takes_context)
    return Job(name=call.name, run=run, shares_state=shares_state)


def prepare_ahead(
    calls: Sequence[ToolCall], tools: Sequence[Tool], owners: Mapping[str, object], early: PureCalls
) -> list[PureCall]:
    """Prepare speculative calls of pure tools, except calls that were prepared before."""
    pure = {tool.name: tool for tool in tools if tool.pure}

    def run(call: ToolCall) -> str:
        return pure[call.name].run(call.arguments, owner=owners.get(call.name))

    added = (early.add(call, partial(run, call)) for call in calls if call.name in pure)
    return [call for call in added if call is not None]


def answer(call: ToolCall, outcome: Outcome) -> Message:
    """Write the tool message: the result, or ``Error: ...``. Not for infrastructure failures, which end the episode."""
    content = outcome.text if outcome.error is None else f"Error: {outcome.error}"
    # JSON escapes may contain lone surrogates, which no tokenizer can encode.
    content = content.encode("utf-8", "replace").decode()
    return Message(role=Role.TOOL, content=content, tool_call_id=call.id, name=call.name)
