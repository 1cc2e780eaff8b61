"""What the number of recorded tokens costs: in acceptance, and in exactness.

The laws of the tokens of a few turns, whole, under the weights that drew them and under later ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.protocol import Sampling, ScoringEngine
from turntree.agents.episodes.episode import Episode
from turntree.spec_tree.rules.verify import behaviour, residual

Floats = NDArray[np.float64]
Turn = tuple[tuple[int, ...], tuple[int, ...]]


class Acceptance(NamedTuple):
    """One number of recorded tokens, after so many epochs."""

    epoch: int
    k: int
    kept: float
    """Probability that a stored token stays."""
    kept_by_all: float
    """The same where the whole old law is known: 1 - D."""
    distance: float
    """Mean total variation between the policy and what the rule emits."""
    naive_distance: float
    """The same for a rule that accepts by the drawn token's own probability, recorded or not."""


class Recorded:
    """Turns and the laws that drew them."""

    def __init__(self, turns: list[Turn], laws: list[Floats], vocabulary: int) -> None:
        self.turns = turns
        self.laws = laws
        self.vocabulary = vocabulary

    @classmethod
    def of(cls, engine: ScoringEngine, episodes: Sequence[Episode], turns: int) -> Recorded:
        every = [(turn.prompt_ids, turn.completion.token_ids) for episode in episodes for turn in episode.turns]
        chosen = every[:: max(1, len(every) // turns)][:turns]
        vocabulary = engine.vocabulary  # type: ignore[attr-defined]
        return cls(chosen, [_laws(engine, turn, vocabulary) for turn in chosen], vocabulary)

    def compare(self, engine: ScoringEngine, epoch: int) -> list[Acceptance]:
        """Every K, with the policy of now."""
        sums: dict[int, Floats] = {}
        count = 0
        for turn, q in zip(self.turns, self.laws, strict=True):
            p = _laws(engine, turn, self.vocabulary)
            count += len(p)
            for k in {k for k in (1, 2, 4, 8, 16, 32, 64) if k < self.vocabulary} | {self.vocabulary}:
                sums[k] = sums.get(k, np.zeros(4)) + at(p, q, k)
        means = {k: values / count for k, values in sorted(sums.items())}
        return [Acceptance(epoch, k, *map(float, values)) for k, values in means.items()]


def at(p: Floats, q: Floats, k: int) -> Floats:
    """Sums over positions of what ``Acceptance`` holds."""
    least = -np.partition(-q, k - 1, axis=1)[:, k - 1 : k]
    part = np.where(q >= least, q, 0.0)
    both = np.minimum(p, q)
    emitted = behaviour(p, part)
    naive = both + (1 - both.sum(1, keepdims=True)) * residual(p, part)
    distances = [np.abs(law - p).sum() / 2 for law in (emitted, naive)]
    return np.array([np.minimum(p, part).sum(), both.sum(), *distances])


def _laws(engine: ScoringEngine, turn: Turn, vocabulary: int) -> Floats:
    prompt, tokens = turn
    top = asyncio.run(engine.score(prompt, tokens, Sampling(), top=vocabulary)).top
    assert top is not None
    laws = np.zeros((len(tokens), vocabulary))
    np.put_along_axis(laws, top.ids[:-1].astype(np.int64), np.exp(top.logprobs[:-1].astype(np.float64)), 1)
    laws /= laws.sum(1, keepdims=True)
    return laws
