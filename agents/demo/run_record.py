"""The records of a finished run, read for the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turntree.agents.demo.compared import Comparison
from turntree.agents.episodes.episode import Episode
from turntree.agents.episodes.record import read_episodes
from turntree.agents.errors import RecordError
from turntree.agents.verl.records.recording import RunFolder
from turntree.envs.data.json_files import json_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One training step."""

    step: int
    """Number of the step, from 1."""
    success: float
    """Mean reward of its episodes."""
    tokens_per_step: float | None
    """Tokens per verify step; ``None`` if the engine recorded none."""
    seconds: float
    """Wall time of the training step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """Everything that the report shows of a run."""

    root: Path
    points: tuple[Point, ...]
    """Training steps in order, at least one."""
    comparison: Comparison | None
    """Comparison with and without speculation; ``None`` if there is none."""
    example: Episode | None
    """An episode of the last step that has any; ``None`` without records."""


def read_run(root: Path) -> RunRecord:
    """Read the folder of a run.

    Raises:
        FileNotFoundError: If there is no ``metrics.jsonl``.
        RecordError: If a line that is read is damaged, or the records have no training step.
    """
    folder = RunFolder(root)
    points, comparison = _points(folder), root / "comparison.json"
    recorded = (folder.episodes(point.step) for point in reversed(points))
    last = next((path for path in recorded if path.is_file()), None)
    return RunRecord(
        root=root,
        points=points,
        comparison=Comparison.load(comparison) if comparison.is_file() else None,
        example=next(iter(read_episodes(last)), None) if last else None,
    )


def _points(folder: RunFolder) -> tuple[Point, ...]:
    if not folder.metrics.is_file():
        raise FileNotFoundError(f"{folder.metrics} is missing; a run writes it while it trains")
    counters = {row["step"]: row for row in _rows(folder.engine)} if folder.engine.is_file() else {}
    points = tuple(
        Point(
            step=row["step"],
            success=row["data"]["critic/score/mean"],
            tokens_per_step=counters.get(row["step"], {}).get("tokens_per_step"),
            seconds=row["data"].get("timing_s/step", float("nan")),
        )
        for row in _rows(folder.metrics)
        if "critic/score/mean" in row["data"]
    )
    if not points:
        raise RecordError(f"{folder.metrics} holds no training step; look at {folder.log} for what went wrong")
    return points


def _rows(path: Path) -> list[dict[str, Any]]:
    refuse = f"{path}, line {{}}: {{}}".format
    return [row for _, row in json_lines(path, lambda *where: RecordError(refuse(*where)))]
