"""Turntree environments as tasks of Inspect (``inspect-ai``): Inspect's models, turntree's tools and rewards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from turntree.envs.bridges.failure import require_verdict
from turntree.envs.bridges.missing import library
from turntree.envs.env import Env
from turntree.envs.message import ToolCall

_PLAYED = "turntree"  #: key of the episode's reward in Inspect's store


def inspect_task(make: Callable[[], Env], indices: Iterable[int], *, name: str = "turntree") -> Any:
    """Return an ``inspect_ai.Task``: each sample is an episode played by the model and scored by its reward.

    The model gets the environment's tools and calls them in its own format; the environment runs them and enforces its
    limits. An infrastructure failure is an error of the sample, without a score.

    Raises:
        MissingExtra: If inspect-ai is not installed.
    """
    ai, dataset = library("inspect_ai", "inspect-ai"), library("inspect_ai.dataset", "inspect-ai")
    env = make()
    samples = []
    for index in indices:
        task = env.task(index)
        shown = task.prompt or task.id
        samples.append(dataset.Sample(input=shown, target=task.answer, id=task.id, metadata={"index": index}))
    return ai.Task(dataset=dataset.MemoryDataset(samples), solver=_solver(make), scorer=_scorer(), name=name)


def _solver(make: Callable[[], Env]) -> Any:
    solvers, models = library("inspect_ai.solver", "inspect-ai"), library("inspect_ai.model", "inspect-ai")

    @solvers.solver(name="turntree_episode")  # type: ignore[untyped-decorator]
    def episode() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            env = make()
            try:
                _, info = await asyncio.to_thread(env.reset, options={"index": state.metadata["index"]})
                state.messages = inspect_messages(info["messages"])
                tools, total, over = _described(info["tools"]), 0.0, False
                while not over:
                    state.output = await models.get_model().generate(state.messages, tools=tools)
                    message = state.output.message
                    _, reward, terminated, truncated, info = await asyncio.to_thread(env.step, _text(env, message))
                    require_verdict(info)
                    ids = [call.id for call in message.tool_calls or ()]
                    state.messages += [message, *inspect_messages(info["messages"], ids)]
                    total, over = total + reward, terminated or truncated
                kept = {"reward": total, "rewards": info["rewards"], "stop_reason": info["stop_reason"]}
                state.store.set(_PLAYED, kept)
            finally:
                env.close()
            state.completed = True
            return state

        return solve

    return episode()


def _scorer() -> Any:
    scorers = library("inspect_ai.scorer", "inspect-ai")

    @scorers.scorer(metrics=[scorers.mean(), scorers.stderr()], name="reward")  # type: ignore[untyped-decorator]
    def reward() -> Any:
        async def score(state: Any, target: Any) -> Any:
            played = state.store.get(_PLAYED)
            return scorers.Score(value=played["reward"], answer=state.output.completion, metadata=played)

        return score

    return reward()


def inspect_messages(messages: Sequence[dict[str, Any]], ids: Sequence[str] = ()) -> list[Any]:
    """Convert OpenAI messages to Inspect's.

    Args:
        messages: Messages, shape (messages,).
        ids: Ids of the calls that the tool messages answer, in order, for messages without a ``tool_call_id``.
    """
    models, tools = library("inspect_ai.model", "inspect-ai"), library("inspect_ai.tool", "inspect-ai")
    named = iter(ids)
    kinds = {"system": models.ChatMessageSystem, "user": models.ChatMessageUser}
    found: list[Any] = []
    for at, message in enumerate(messages):
        role, content = message["role"], message.get("content") or ""
        if role == "tool":
            id = next(named, None) or message.get("tool_call_id") or None
            found.append(models.ChatMessageTool(content=content, tool_call_id=id, function=message.get("name")))
        elif role == "assistant":
            calls = [
                tools.ToolCall(
                    id=call.get("id") or f"call_{at}_{number}",
                    function=call["function"]["name"],
                    arguments=dict(call["function"]["arguments"]),
                )
                for number, call in enumerate(message.get("tool_calls") or ())
            ]
            named = iter([call.id for call in calls])
            found.append(models.ChatMessageAssistant(content=content, tool_calls=calls or None))
        else:
            found.append(kinds[role](content=content))
    return found


def _described(schemas: Sequence[dict[str, Any]]) -> list[Any]:
    tools = library("inspect_ai.tool", "inspect-ai")
    functions = [schema["function"] for schema in schemas]
    return [
        tools.ToolInfo(name=f["name"], description=f["description"], parameters=tools.ToolParams(**f["parameters"]))
        for f in functions
    ]


def _text(env: Env, message: Any) -> str:
    # The model's text, then its calls in the environment's own format.
    calls = [ToolCall(name=call.function, arguments=call.arguments) for call in message.tool_calls or ()]
    return "\n".join(part for part in (message.text, *map(env.parser.format_call, calls)) if part)
