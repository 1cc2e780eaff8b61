"""Costs of training steps with and without speculation, their ratios, and the spread of the ratios."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from turntree.agents.errors import RecordError
from turntree.agents.files import write_whole
from turntree.envs.data.json_files import json_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Counters of ``EngineStats`` for the episodes of one step."""

    forward_passes: int
    seconds: float  #: wall time in the engine
    draft_seconds: float  #: part of ``seconds`` spent drafting
    tokens: int
    drafted: int  #: draft tokens verified
    accepted: int
    tokens_per_forward_pass: float  #: of one request, not summed over the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    step: int  #: from 1
    episodes: int
    equal: int  #: episodes with equal tokens
    speculative: Cost
    plain: Cost

    @property
    def passes(self) -> float:  # ratio of forward passes, without drafts / with drafts
        return self.plain.forward_passes / self.speculative.forward_passes

    @property
    def speedup(self) -> float:  # ratio of engine seconds, without drafts / with drafts
        return self.plain.seconds / self.speculative.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    steps: tuple[StepComparison, ...]

    @property
    def first_third(self) -> tuple[StepComparison, ...]:
        return self.steps[: max(1, len(self.steps) // 3)]

    @property
    def last_third(self) -> tuple[StepComparison, ...]:
        return self.steps[-max(1, len(self.steps) // 3) :]

    @property
    def equal(self) -> bool:
        return all(step.equal == step.episodes for step in self.steps)

    def save(self, path: Path) -> None:
        write_whole(path, "".join(json.dumps(asdict(step)) + "\n" for step in self.steps))

    @classmethod
    def load(cls, path: Path) -> Comparison:
        rows = json_lines(path, lambda number, problem: RecordError(f"{path}, line {number}: {problem}"))
        costs = ((row, {name: Cost(**row[name]) for name in ("speculative", "plain")}) for _, row in rows)
        return cls(steps=tuple(StepComparison(**{**row, **cost}) for row, cost in costs))


class Spread(NamedTuple):
    """A cost without drafts divided by the cost with drafts, over several steps."""

    whole: float  #: sum over all steps without drafts / sum with drafts
    low: float  #: first quartile of the per-step ratios
    high: float  #: third quartile


def passes_saved(steps: Sequence[StepComparison]) -> Spread:
    whole = sum(s.plain.forward_passes for s in steps) / sum(s.speculative.forward_passes for s in steps)
    return Spread(whole, *quartiles([step.passes for step in steps]))


def seconds_saved(steps: Sequence[StepComparison]) -> Spread:
    return Spread(speedup(steps), *quartiles([step.speedup for step in steps]))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and third quartile, interpolated between neighbouring values.

    >>> quartiles([4.0, 1.0, 2.0, 3.0, 5.0]), quartiles([7.0])
    ((2.0, 4.0), (7.0, 7.0))
    """
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def speedup(steps: Sequence[StepComparison]) -> float:
    return sum(s.plain.seconds for s in steps) / sum(s.speculative.seconds for s in steps)
