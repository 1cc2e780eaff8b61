"""What a comparison with and without speculation measured: costs of steps, their ratios, and how these scatter."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from turntree.agents.errors import RecordError
from turntree.agents.files import write_whole
from turntree.envs.data.json_files import json_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The engine's counters of the same names, for the episodes of one step."""

    forward_passes: int
    """Forward passes of the model."""
    seconds: float
    """Wall time in the engine."""
    draft_seconds: float
    """The store's part of it."""
    tokens: int
    """Tokens sampled."""
    drafted: int
    """Draft tokens verified."""
    accepted: int
    """Draft tokens that the policy itself sampled."""
    tokens_per_forward_pass: float
    """Tokens per forward pass of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepComparison:
    """One training step played with and without drafts."""

    step: int
    """Number of the step, from 1."""
    episodes: int
    """Episodes of the step."""
    equal: int
    """Number of episodes that are equal token for token."""
    speculative: Cost
    """Cost with drafts."""
    plain: Cost
    """Cost without drafts."""

    @property
    def passes(self) -> float:
        """Ratio of forward passes without drafts to those with."""
        return self.plain.forward_passes / self.speculative.forward_passes

    @property
    def speedup(self) -> float:
        """Ratio of engine seconds without drafts to those with."""
        return self.plain.seconds / self.speculative.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of a recorded run."""

    steps: tuple[StepComparison, ...]
    """The steps that were played again, in order."""

    @property
    def first_third(self) -> tuple[StepComparison, ...]:
        """The first third of the steps."""
        return self.steps[: max(1, len(self.steps) // 3)]

    @property
    def last_third(self) -> tuple[StepComparison, ...]:
        """The last third of the steps."""
        return self.steps[-max(1, len(self.steps) // 3) :]

    @property
    def equal(self) -> bool:
        """Whether every episode of every step is equal token for token."""
        return all(step.equal == step.episodes for step in self.steps)

    def save(self, path: Path) -> None:
        """Write a line of JSON for each step, whole or not at all."""
        write_whole(path, "".join(json.dumps(asdict(step)) + "\n" for step in self.steps))

    @classmethod
    def load(cls, path: Path) -> Comparison:
        """Read what ``save`` wrote."""
        rows = json_lines(path, lambda number, problem: RecordError(f"{path}, line {number}: {problem}"))
        return cls(steps=tuple(_step(row) for _, row in rows))


def _step(saved: dict[str, Any]) -> StepComparison:
    costs = {name: Cost(**saved[name]) for name in ("speculative", "plain")}
    return StepComparison(**{**saved, **costs})


class Spread(NamedTuple):
    """A ratio over several steps: without drafts to with."""

    whole: float
    """Ratio of the sums."""
    low: float
    """First quartile of the single steps' ratios."""
    high: float
    """Third quartile of them."""


def passes_saved(steps: Sequence[StepComparison]) -> Spread:
    """Ratio of forward passes without drafts to those with."""
    whole = sum(s.plain.forward_passes for s in steps) / sum(s.speculative.forward_passes for s in steps)
    return Spread(whole, *quartiles([step.passes for step in steps]))


def seconds_saved(steps: Sequence[StepComparison]) -> Spread:
    """Ratio of engine seconds without drafts to those with."""
    return Spread(speedup(steps), *quartiles([step.speedup for step in steps]))


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third quartile, interpolated between the values beside them.

    >>> quartiles([4.0, 1.0, 2.0, 3.0, 5.0]), quartiles([7.0])
    ((2.0, 4.0), (7.0, 7.0))
    """
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def speedup(steps: Sequence[StepComparison]) -> float:
    """Ratio of engine seconds without drafts to those with, over all of ``steps``."""
    return sum(s.plain.seconds for s in steps) / sum(s.speculative.seconds for s in steps)
