from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from turntree.envs.bridges.inspect_ai import inspect_messages
from turntree.envs.bridges.missing import library


def write_inspect_log(rows: Iterable[Mapping[str, Any]], path: Path, *, task: str, model: str) -> Path:
    """Write evaluated episodes as an Inspect log: one sample per episode with its dialogue and rewards.

    A failed episode is a sample with an error and without scores, and does not count in the mean.

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
