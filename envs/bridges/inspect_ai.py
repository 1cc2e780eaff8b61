"""Inspect (``inspect-ai``): turntree environments as Inspect tasks, and evaluated episodes as Inspect logs."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from turntree.envs.bridges.libraries import library, require_verdict
from turntree.envs.env import Env
from turntree.envs.message import ToolCall

_PLAYED = "turntree"  #: key of the episode's reward in Inspect's store


def inspect_task(make: Callable[[], Env], indices: Iterable[int], *, name: str = "turntree") -> Any:
    """Return an ``inspect_ai.Task``: each sample is an episode played by the model and scored by its reward.

    The model gets the environment's tools and calls them in the model's own format; the environment runs the tools and
    enforces its limits. An infrastructure failure is an error of the sample, without a score.

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
    """Convert OpenAI messages to Inspect's message classes.

    Args:
        messages: Messages, shape (messages,).
        ids: Ids of the calls that the tool messages answer, in order; used if a message has no ``tool_call_id``.
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


def write_inspect_log(rows: Iterable[Mapping[str, Any]], path: Path, *, task: str, model: str) -> Path:
    """Write evaluated episodes as an Inspect log: one sample per episode with its dialogue and rewards.

    A failed episode becomes a sample with an error and without scores. It does not count in the mean score.

    Args:
        rows: Lines of the file written by ``turntree eval --out``, as JSON values.
        path: Path of the log, ``*.eval``.

    Raises:
        MissingExtra: If inspect-ai is not installed.
        ValueError: If the path has another suffix, because Inspect's viewer would not list it.
    """
    if path.suffix != ".eval":
        raise ValueError(f"the name of a log must end with .eval, so that Inspect's viewer lists it; got {path}")
    log = library("inspect_ai.log", "inspect-ai")
    samples = [_sample(row, model) for row in rows]
    now = datetime.now(UTC).isoformat()
    ids = list(dict.fromkeys(sample.id for sample in samples))
    spec = log.EvalSpec(
        created=now,
        task=task,
        task_id=uuid.uuid4().hex,
        run_id=uuid.uuid4().hex,
        eval_id=uuid.uuid4().hex,
        dataset=log.EvalDataset(name=task, samples=len(ids), sample_ids=ids),
        model=model,
        config=log.EvalConfig(epochs=max((sample.epoch for sample in samples), default=1)),
    )
    stats = log.EvalStats(started_at=now, completed_at=now)
    whole = log.EvalLog(status="success", eval=spec, results=_results(samples), stats=stats, samples=samples)
    log.write_eval_log(whole, str(path))
    return path


def _sample(row: Mapping[str, Any], model: str) -> Any:
    log, models = library("inspect_ai.log", "inspect-ai"), library("inspect_ai.model", "inspect-ai")
    scorers = library("inspect_ai.scorer", "inspect-ai")
    episode = row["episode"]
    task = episode["task"] or {"id": f"{episode['env_id']}/{row['index']}", "answer": "", "prompt": ""}
    messages = inspect_messages(episode["messages"])
    words = [message.text for message in messages if message.role == "assistant"]
    rewards = {"reward": sum(turn["reward"] for turn in episode["turns"]), **episode["rewards"]}
    failure = episode["failure"] or ", ".join(episode.get("ungraded", ()))
    return log.EvalSample(
        id=task["id"],
        epoch=row["sample"] + 1,
        input=task["prompt"] or (messages[0].text if messages else ""),
        target=task["answer"],
        messages=messages,
        output=models.ModelOutput.from_content(model, words[-1] if words else ""),
        scores=None if failure else {name: scorers.Score(value=value) for name, value in rewards.items()},
        error=log.EvalError(message=failure, traceback=failure, traceback_ansi=failure) if failure else None,
        metadata={"stop_reason": episode["stop_reason"], "index": row["index"], "seed": episode["seed"]},
    )


def _results(samples: list[Any]) -> Any:
    log = library("inspect_ai.log", "inspect-ai")
    scored = [sample.scores for sample in samples if sample.scores is not None]
    names = list(dict.fromkeys(name for scores in scored for name in scores))
    found = []
    for name in names:
        values = [float(scores[name].value) for scores in scored if name in scores]
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
        metrics = {"mean": mean(values), "stderr": error}
        found.append(
            log.EvalScore(
                name=name,
                scorer=name,
                scored_samples=len(values),
                unscored_samples=len(samples) - len(values),
                metrics={kind: log.EvalMetric(name=kind, value=value) for kind, value in metrics.items()},
            )
        )
    return log.EvalResults(total_samples=len(samples), completed_samples=len(scored), scores=found)
