"""The stock of precomputed turns that wait for their step, with the exactness level that each may claim.

A turn is found by its exact prompt, the sampler's transforms and its seed, and
serves as a draft of what that seed samples under the policy of its step. Any
draft is correct to use, so the choice of what is kept and dropped is free. What
a draft cannot give is the claim: the noise of its seed has been used, and a
policy that was trained on tokens from that noise depends on it.

Invariant: a turn is handed out for promotion, which is level B, only if no turn
of its seed was in an episode that the policy may have been trained on
(``SeenSeeds``, which can only err towards handing out too few).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from turntree.spec_tree.rules.seen_seeds import SeenSeeds


class PrecomputedTurn(NamedTuple):
    """A precomputed turn, or the beginning of one."""

    tokens: tuple[int, ...]
    """Token ids, shape (tokens,)."""
    step: int
    """Training step that it is for."""


@dataclass(slots=True, kw_only=True)
class PrecomputedCounts:
    """Counters since creation."""

    refused: int = 0
    """Turns not handed out because the policy was trained on their noise."""
    dropped: int = 0
    """Tokens dropped for lack of room, or because their step was over."""


class PrecomputedStore:
    """See the module's docstring. Not thread-safe: it lives in one event loop.

    Args:
        max_tokens: Most tokens held; the oldest turns are dropped first.
        trained: Seeds that the policy was trained on before, from a snapshot.

    Example:
        >>> stock = PrecomputedStore(max_tokens=100)
        >>> stock.put("prompt", 7, (1, 2), step=2)
        >>> stock.take("prompt", 7).tokens
        (1, 2)
        >>> stock.take("prompt", 7) is None
        True
    """

    def __init__(self, *, max_tokens: int, trained: SeenSeeds | None = None) -> None:
        self.counts = PrecomputedCounts()
        self.trained = SeenSeeds() if trained is None else trained
        self._max_tokens = max_tokens
        self._tokens = 0
        self._turns: dict[tuple[Hashable, int], PrecomputedTurn] = {}
        self._used: dict[int, int] = {}
        self._shown: set[int] = set()

    def put(self, key: Hashable, seed: int, tokens: tuple[int, ...], *, step: int) -> None:
        """Keep a turn's tokens so far, replacing those kept before.

        Args:
            key: The exact prompt, and everything else that the distribution depends on.
            tokens: Token ids, shape (tokens,).
        """
        self.use(seed, step)
        self._remove((key, seed))
        if not tokens:
            return
        self._turns[key, seed] = PrecomputedTurn(tokens, step)
        self._tokens += len(tokens)
        while self._tokens > self._max_tokens:
            self.counts.dropped += len(self._remove(next(iter(self._turns))))

    def peek(self, key: Hashable, seed: int) -> tuple[int, ...]:
        """The tokens kept of a turn, to continue it; empty if there are none."""
        made = self._turns.get((key, seed))
        return () if made is None else made.tokens

    def holds(self, key: Hashable, seed: int) -> bool:
        """Whether ``take`` would hand out a turn."""
        return (key, seed) in self._turns and seed not in self.trained

    def take(self, key: Hashable, seed: int) -> PrecomputedTurn | None:
        """The turn as a draft that may be promoted; ``None`` if there is none or none may be."""
        made = self._turns.get((key, seed))
        if made is None:
            return None
        self._remove((key, seed))
        if seed in self.trained:
            self.counts.refused += 1
            self.counts.dropped += len(made.tokens)
            return None
        return made

    def use(self, seed: int, step: int) -> None:
        """Record that something is precomputed for ``step`` with the noise of ``seed``."""
        self._used[seed] = max(step, self._used.get(seed, step))

    def used(self, seed: int) -> bool:
        """Whether something was precomputed with the noise of ``seed``, for a step that is not over."""
        return seed in self._used

    def show(self, seed: int) -> None:
        """Record that a turn of ``seed`` went into an episode."""
        self._shown.add(seed)

    def close_step(self, step: int) -> None:
        """Training step ``step`` is over: the policy was trained on what was shown, and its remaining turns
        are of no use."""
        self.trained.add(self._shown)
        self._shown.clear()
        for place, made in list(self._turns.items()):
            if made.step <= step:
                self.counts.dropped += len(self._remove(place))
        self._used = {seed: last for seed, last in self._used.items() if last > step}

    def turns(self) -> Iterator[tuple[Hashable, int, PrecomputedTurn]]:
        """All held turns, the oldest first: key, seed and turn."""
        for (key, seed), made in self._turns.items():
            yield key, seed, made

    def used_seeds(self) -> Iterator[tuple[int, int]]:
        """Seeds that were used for precomputing, each with its step."""
        yield from self._used.items()

    @property
    def shown(self) -> frozenset[int]:
        """Seeds of the running step's episodes."""
        return frozenset(self._shown)

    @property
    def tokens(self) -> int:
        """Tokens held."""
        return self._tokens

    def _remove(self, place: tuple[Hashable, int]) -> tuple[int, ...]:
        made = self._turns.pop(place, None)
        if made is None:
            return ()
        self._tokens -= len(made.tokens)
        return made.tokens
