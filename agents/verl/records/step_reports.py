"""Reports of finished training steps, read from the records of a running training."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turntree.agents.verl.records.metrics import PREFIX
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.records.step_checks import first_program_error


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    step: int  #: from 1
    metrics: Mapping[str, float]
    engine: Mapping[str, float]  #: the step's engine counters; empty with another backend or if the replica died
    program_error: str = ""  #: number of programs that gave no answer, and the first cause; empty if all answered

    @property
    def reward(self) -> float:
        return self.metrics.get("critic/score/mean", float("nan"))

    @property
    def seconds(self) -> float:
        return self.metrics.get("timing_s/step", float("nan"))

    @property
    def tokens_per_forward_pass(self) -> float:
        """Tokens per forward pass of a request; 1 without speculation."""
        return self.engine.get(
            "tokens_per_forward_pass", self.metrics.get(f"{PREFIX}tokens_per_forward_pass", float("nan"))
        )


class StepReader:
    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._metrics = NewLines(folder.metrics)
        self._engine = NewLines(folder.engine)
        self._counters: dict[int, dict[str, Any]] = {}

    def new(self) -> Iterator[StepReport]:
        # Read the metrics first: verl writes them after the engine's counters, so the counters are complete.
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
    """Reads the complete JSON lines that were appended to a file since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # an incomplete line waits for the next call
        self._offset += len(whole)
        yield from map(json.loads, whole.splitlines())
