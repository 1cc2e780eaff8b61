"""Reports of finished training steps, read from the records of a running training."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turntree.agents.verl.records.lost_steps import first_program_error
from turntree.agents.verl.records.metrics import PREFIX
from turntree.agents.verl.records.recording import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One finished training step."""

    step: int
    """Number of the step, from 1."""
    metrics: Mapping[str, float]
    engine: Mapping[str, float]
    """The engine's counters of this step; empty with another rollout backend, and if the replica was lost after it."""
    program_error: str = ""
    """How many programs gave no answer by their own fault, and the first cause; empty if all did."""

    @property
    def reward(self) -> float:
        """Mean reward of the step's episodes."""
        return self.metrics.get("critic/score/mean", float("nan"))

    @property
    def seconds(self) -> float:
        """Wall time of the step."""
        return self.metrics.get("timing_s/step", float("nan"))

    @property
    def tokens_per_forward_pass(self) -> float:
        """Tokens per forward pass of a request; 1 without speculation."""
        return self.engine.get(
            "tokens_per_forward_pass", self.metrics.get(f"{PREFIX}tokens_per_forward_pass", float("nan"))
        )


class StepReader:
    """Reads the records that a run has added since the last call."""

    def __init__(self, folder: RunFolder) -> None:
        """Start at the first step."""
        self._folder = folder
        self._metrics = NewLines(folder.metrics)
        self._engine = NewLines(folder.engine)
        self._counters: dict[int, dict[str, Any]] = {}

    def new(self) -> Iterator[StepReport]:
        """The training steps that have ended; verl writes its metrics after the engine's."""
        rows = list(self._metrics.new())
        for counters in self._engine.new():
            self._counters[counters["step"]] = counters
        for row in rows:
            # Validation before training is logged as step 0, which is not a training step.
            if "training/global_step" in row["data"]:
                step, metrics = row["step"], row["data"]
                yield StepReport(
                    step=step,
                    metrics=metrics,
                    engine=self._counters.pop(step, {}),
                    program_error=self._program_error(step, metrics),
                )

    def _program_error(self, step: int, metrics: Mapping[str, float]) -> str:
        errors = metrics.get(f"{PREFIX}program_errors", 0.0)
        if not errors:
            return ""
        count = f"{errors:g} of {metrics.get(f'{PREFIX}episodes', math.nan):g} programs gave no answer"
        return "; ".join(filter(None, (count, first_program_error(self._folder, step))))


class NewLines:
    """Reads the whole JSON lines that were appended to a file since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[dict[str, Any]]:
        """The lines; one that is not whole yet waits for the next call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        yield from map(json.loads, whole.splitlines())
