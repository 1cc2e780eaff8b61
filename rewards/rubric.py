"""Rubrics: combine several rewards into one number per sample.

Shaping rewards (all rewards that do not grade the answer) never outweigh a right answer. Every part is clamped. A
rubric is refused if a wrong answer with perfect shaping rewards could beat a right answer with the worst.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from turntree.rewards.errors import RewardDefinitionError
from turntree.rewards.registry import Reward, get_reward
from turntree.rewards.sample import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One reward of a rubric."""

    reward: str | Reward
    """The reward, or its registered name."""
    weight: float = 1.0
    """Factor in the sum; with 0, the value is only recorded as a metric."""
    low: float = 0.0
    """Lower bound: smaller values are clamped."""
    high: float = 1.0
    """Upper bound: larger values are clamped."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.weight) and math.isfinite(self.low) and math.isfinite(self.high)):
            raise RewardDefinitionError(f"weight, low and high must be finite, got {self}")
        if self.low > self.high:
            raise RewardDefinitionError(f"low must not lie above high, got {self.low} > {self.high}")

    @property
    def span(self) -> float:
        """Return by how much this part can change the sum at most."""
        return abs(self.weight) * (self.high - self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class RubricResult:
    """The reward of one sample."""

    reward: float  #: weighted sum of the clamped, graded parts
    parts: dict[str, float]  #: clamped value of every part that is not ungraded, by name
    #: names of ungraded parts; if such a part grades the answer, leave the sample out of averages
    ungraded: tuple[str, ...] = ()


class Rubric:
    """A weighted sum of rewards in which shaping rewards cannot outweigh the answer."""

    def __init__(self, parts: Sequence[Part]) -> None:
        """Look up the rewards and check the weights.

        Args:
            parts: The rewards; at least one.

        Raises:
            UnknownReward: A name is not registered.
            RewardDefinitionError: A name is given twice, shaping rewards could outweigh the answer, or a reward that
                grades the answer has a negative weight.
        """
        if not parts:
            raise RewardDefinitionError("a rubric needs at least one part")
        self._parts = tuple(parts)
        self._rewards = tuple(
            get_reward(part.reward) if isinstance(part.reward, str) else part.reward for part in parts
        )
        names = [reward.name for reward in self._rewards]
        if len(set(names)) < len(names):
            raise RewardDefinitionError(f"every reward may come once, got {', '.join(names)}")
        both = list(zip(parts, self._rewards, strict=True))
        for part, reward in both:
            if reward.decides and part.weight < 0:
                raise RewardDefinitionError(
                    f"{reward.name!r} grades the answer: a weight below 0 pays wrong answers more than right ones, got "
                    f"{part.weight:g}; give a positive one, or 0 for a metric only"
                )
        deciding = [part.span for part, reward in both if reward.decides and part.weight > 0]
        shaping = sum(part.span for part, reward in both if not reward.decides)
        # Every part is clamped, so its span bounds its effect on the sum.
        if deciding and shaping >= min(deciding):
            raise RewardDefinitionError(
                f"shaping rewards may move the sum by {shaping:g}, the answer by {min(deciding):g}: "
                "form alone would beat a right answer; lower their weights or clamp them"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parts, in order."""
        return tuple(reward.name for reward in self._rewards)

    def score(self, samples: Sequence[Sample]) -> list[RubricResult]:
        """Return the rewards of a batch; samples with the same ``task_id`` belong to one task.

        Args:
            samples: Samples, shape (samples,).

        Returns:
            One result per sample, in order.

        Raises:
            RewardDefinitionError: A reward returned something that is not a number.
        """
        values = [self._values(reward, samples) for reward in self._rewards]
        return [self._result([column[index] for column in values]) for index in range(len(samples))]

    def _values(self, reward: Reward, samples: Sequence[Sample]) -> list[float | None]:
        if not reward.group:
            return reward.values(samples)
        values: list[float | None] = [None] * len(samples)
        for indices in groups_of(samples):
            for index, value in zip(indices, reward.values([samples[index] for index in indices]), strict=True):
                values[index] = value
        return values

    def _result(self, values: list[float | None]) -> RubricResult:
        total, kept, ungraded = 0.0, {}, []
        for part, reward, value in zip(self._parts, self._rewards, values, strict=True):
            if value is None:
                ungraded.append(reward.name)
                continue
            if not math.isfinite(value):
                raise RewardDefinitionError(f"reward {reward.name!r} returned {value!r}, not a finite number or None")
            kept[reward.name] = min(max(float(value), part.low), part.high)
            total += part.weight * kept[reward.name]
        return RubricResult(reward=total, parts=kept, ungraded=tuple(ungraded))


def groups_of(samples: Sequence[Sample]) -> list[list[int]]:
    """Return the indices of each task's samples; a sample without a task id is its own group.

    Args:
        samples: Samples, shape (samples,).

    Returns:
        One list of indices per task, in order of first appearance; each list keeps the order of the batch.

    Example:
        >>> groups_of([Sample(turns=("a",), task_id="1"), Sample(turns=("b",), task_id="1"), Sample(turns=("c",))])
        [[0, 1], [2]]
    """
    indices: dict[tuple[str, int], list[int]] = {}
    for index, sample in enumerate(samples):
        indices.setdefault((sample.task_id, -1 if sample.task_id else index), []).append(index)
    return list(indices.values())
