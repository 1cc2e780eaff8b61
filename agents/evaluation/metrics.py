"""Metrics over several samples per task: average, pass@k and majority, each with an interval.

Intervals are bootstraps over tasks (1,000 draws, fixed seed, 2.5 to 97.5 %), because samples of one task are not
independent. Masked episodes are left out, and so are tasks with masked episodes only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import comb, nan
from typing import NamedTuple

import numpy as np

from turntree.agents.episodes.episode import Episode
from turntree.agents.evaluation.evaluate import Estimate, solved
from turntree.envs.message import Role
from turntree.rewards import extract, score_batch

_DRAWS = 1000


class Repeated(NamedTuple):
    average: Estimate  #: avg@k, fraction of right samples
    passing: dict[int, Estimate]  #: k -> pass@k, probability that one of k samples is right
    majority: Estimate  #: maj@k, whether the most frequent answer is right; ties count by their share


def repeated(groups: Sequence[Sequence[Episode]]) -> Repeated:
    scored = [[episode for episode in group if not episode.masked] for group in groups]
    scored = [group for group in scored if group]
    right = [sum(map(solved, group)) for group in scored]
    most = max(map(len, scored), default=0)
    passing: dict[int, Estimate] = {}
    # Powers of two up to the number of samples, and that number itself.
    for k in sorted({2**n for n in range(most.bit_length())} | {most}) if most else []:
        eligible = [(len(group), count) for group, count in zip(scored, right, strict=True) if len(group) >= k]
        passing[k] = estimate([pass_at_k(n, count, k) for n, count in eligible])
    return Repeated(
        average=estimate([count / len(group) for group, count in zip(scored, right, strict=True)]),
        passing=passing,
        majority=estimate([majority_right(group) for group in scored]),
    )


def pass_at_k(samples: int, right: int, k: int) -> float:
    """Estimate without bias the probability that one of ``k`` samples is right (Chen et al. 2021, eq. 1).

    >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 2), pass_at_k(4, 3, 2)
    (0.25, 0.5, 1.0)
    """
    return 1.0 - comb(samples - right, k) / comb(samples, k)


def majority_right(episodes: Sequence[Episode]) -> float:
    """Return whether the most frequent answer is right, or the right share of tied answers.

    All right answers count as one answer, and so do wrong answers that the verifier finds equal. Episodes without an
    answer do not vote. The answer is read from the policy's last message.
    """
    right = sum(map(solved, episodes))
    texts = (final_text(episode) for episode in episodes if not solved(episode))
    wrong = Counter(" ".join(text.split()) for text in texts if text is not None)
    if not right:
        return 0.0
    votes = _votes(wrong) if wrong.total() >= right else list(wrong.values())
    most = max([right, *votes])
    return float(right == most) / (1 + votes.count(most))


def _votes(answers: Counter[str]) -> list[int]:
    pairs = list(combinations(answers, 2))
    # The question serves only to detect a copied question, so it is left empty: here answers are compared.
    questions = [""] * len(pairs)
    scores = score_batch(
        [rf"\boxed{{{first}}}" for first, _ in pairs], [other for _, other in pairs], questions=questions
    )
    votes = dict(answers)
    for (answer, other), score in zip(pairs, scores, strict=True):
        if score.correct and answer in votes and other in votes:
            votes[answer] += votes.pop(other)
    return list(votes.values())


def final_text(episode: Episode) -> str | None:
    replies = [message.content for message in episode.messages if message.role is Role.ASSISTANT]
    return extract(replies[-1]).answer if replies else None


def estimate(values: Sequence[float]) -> Estimate:
    if not values:
        return Estimate(nan, nan, nan, 0)
    data = np.asarray(values, np.float64)
    # A fixed seed, so that the same episodes always give the same interval.
    drawn = np.random.default_rng(0).integers(len(data), size=(_DRAWS, len(data)))
    low, high = np.quantile(data[drawn].mean(axis=1), [0.025, 0.975])
    return Estimate(float(data.mean()), float(low), float(high), len(data))
