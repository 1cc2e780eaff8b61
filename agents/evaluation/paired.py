"""Two policies on the same tasks with the same noise: the difference, its interval, and what changed.

The sampling noise is a function of task, sample and turn. So two episodes differ only if the policies' probabilities
lead to another token with the same noise. Turns of the first policy are drafts for the second policy. The drafts save
forward passes and change no token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import nan, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Any, NamedTuple

from turntree.agents.engines.protocol import TurnRequest, derive_seed
from turntree.agents.episodes.episode import Episode
from turntree.agents.evaluation.evaluate import Estimate, Evaluation, sampling_seed
from turntree.agents.turn_drafts.source import Source, TurnDraft
from turntree.spec_tree.rules.level import Level

_QUANTILE = 0.975
_SMALL_QUANTILES = {1: 12.7062, 2: 4.3027, 3: 3.1824}  #: degrees of freedom -> value where the series is too coarse


class OtherPolicy(Source):
    """Offer the first policy's turn of the same seed as a draft for each turn of the second policy.

    Args:
        turns: seed -> token ids of a turn
    """

    def __init__(self, turns: Mapping[int, Sequence[int]]) -> None:
        self._turns = turns

    def turn_draft(self, request: TurnRequest) -> TurnDraft | None:
        seed = request.sampling.seed
        if seed is None or (turn := self._turns.get(seed)) is None:
            return None
        return TurnDraft(source=self, tokens=turn, level=Level.B, seed=seed)


def turn_drafts_of(episodes: Sequence[Episode], samples: int, seed: int) -> dict[int, tuple[int, ...]]:
    """Return seed -> token ids for the turns of an evaluation.

    Args:
        episodes: As ``evaluate`` returns them, for tasks 0, 1, ...
    """
    return {
        derive_seed(sampling_seed(seed, *divmod(position, samples)), number): turn.completion.token_ids
        for position, episode in enumerate(episodes)
        for number, turn in enumerate(episode.turns)
    }


class Change(NamedTuple):
    task: str  #: task id
    sample: int
    before: float  #: reward of the first policy
    after: float
    why: str  #: where the two episodes first differ


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:  # the comparison of two policies
    difference: Estimate  #: mean reward of the second policy minus the first, with the paired interval over tasks
    independent: Estimate  #: the difference with the interval of two independent evaluations
    left_out: int  #: pairs with a masked episode
    equal: int  #: pairs with equal tokens
    changes: tuple[Change, ...]  #: pairs whose rewards differ
    passes: tuple[int, int]  #: forward passes of both policies
    tokens: tuple[int, int]  #: tokens of both policies; without speculation, each token needs one forward pass

    @property
    def share_of_passes(self) -> float:
        # Without speculation, sampling a token takes one pass, so ``tokens`` is the number of passes to compare with.
        return sum(self.passes) / sum(self.tokens) if all(self.passes) else nan

    def figures(self) -> dict[str, Any]:
        return {
            "difference": self.difference._asdict(),
            "difference of independent evaluations": self.independent._asdict(),
            "pairs equal token for token": self.equal,
            "pairs left out": self.left_out,
            "forward passes": list(self.passes),
            "tokens": list(self.tokens),
            "share of plain decoding's passes": self.share_of_passes,
            "changed": [change._asdict() for change in self.changes],
        }


class Pair(NamedTuple):
    task: int
    sample: int
    before: Episode
    after: Episode


def compare(before: Sequence[Episode], after: Sequence[Episode], samples: int) -> Paired:
    """Compare two evaluations of the same tasks and seeds, ordered as ``evaluate`` returns them."""
    both = enumerate(zip(before, after, strict=True))
    return compare_pairs([Pair(*divmod(position, samples), a, b) for position, (a, b) in both])


def compare_pairs(given: Sequence[Pair]) -> Paired:
    pairs = [pair for pair in given if not pair.before.masked and not pair.after.masked]
    tasks: dict[int, list[Pair]] = {}
    for pair in pairs:
        tasks.setdefault(pair.task, []).append(pair)
    means = [
        (fmean(pair.before.reward for pair in group), fmean(pair.after.reward for pair in group))
        for group in tasks.values()
    ]
    firsts, seconds = Evaluation.of([pair.before for pair in given]), Evaluation.of([pair.after for pair in given])
    return Paired(
        difference=mean_interval([b - a for a, b in means]),
        independent=independent_interval([a for a, _ in means], [b for _, b in means]),
        left_out=len(given) - len(pairs),
        equal=sum(_outputs(pair.before) == _outputs(pair.after) for pair in pairs),
        changes=tuple(
            Change(a.task.id if a.task else "", sample, a.reward, b.reward, _first_difference(a, b))
            for _, sample, a, b in pairs
            if a.reward != b.reward
        ),
        passes=(firsts.verify_steps, seconds.verify_steps),
        tokens=(firsts.tokens, seconds.tokens),
    )


def mean_interval(values: Sequence[float]) -> Estimate:
    """Return the mean of one value per task with the 95 % interval of Student's t (Student 1908).

    If all values are 0, Student's interval would have width 0. The interval is then that of Clopper and Pearson (1934)
    for 0 differing tasks out of n, with the assumption that one task's difference is at most 1.

    >>> [round(value, 3) for value in mean_interval([0.0, 0.0, 1.0, 1.0])[:3]]
    [0.5, -0.419, 1.419]
    """
    count = len(values)
    if count < 2:
        return Estimate(values[0] if values else nan, nan, nan, count)
    mean = fmean(values)
    if not any(values):
        half = 1 - (1 - _QUANTILE) ** (1 / count)
    else:
        half = t_quantile(count - 1) * stdev(values) / sqrt(count)
    return Estimate(mean, mean - half, mean + half, count)


def independent_interval(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """Return the difference of two means with Welch's 95 % interval (1947), for equal sample sizes."""
    count = len(before)
    if count < 2:
        return Estimate(nan, nan, nan, count)
    squares = [stdev(values) ** 2 / count for values in (before, after)]
    spread = sum(squares)
    freedom = (count - 1) * spread**2 / sum(square**2 for square in squares) if spread else 2 * (count - 1)
    half, mean = t_quantile(freedom) * sqrt(spread), fmean(after) - fmean(before)
    return Estimate(mean, mean - half, mean + half, count)


def t_quantile(freedom: float) -> float:  # freedom: degrees of freedom
    """Return the 97.5 % quantile of Student's t (Abramowitz and Stegun 1964, 26.7.5).

    The error is below 0.2 % from 4 degrees of freedom on.

    >>> round(t_quantile(4), 2), round(t_quantile(9), 3), round(t_quantile(1e9), 3)
    (2.78, 2.262, 1.96)
    """
    if (few := _SMALL_QUANTILES.get(int(freedom))) is not None:
        return few
    z = NormalDist().inv_cdf(_QUANTILE)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))


def _outputs(episode: Episode) -> list[Sequence[int] | str]:
    return [turn.text if turn.text_only else turn.completion.token_ids for turn in episode.turns]


def _first_difference(before: Episode, after: Episode) -> str:
    for turn, (left, other) in enumerate(zip_longest(_outputs(before), _outputs(after))):
        if left is None or other is None:
            return f"one episode continues after turn {turn}"
        unit = "character" if isinstance(left, str) else "token"
        for position, (a, b) in enumerate(zip_longest(left, other)):
            if a != b:
                return f"turn {turn}, {unit} {position}; ended by {before.stop_reason} and {after.stop_reason}"
    return "equal tokens, scored differently"
