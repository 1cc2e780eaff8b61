"""The store of precomputed turns that wait for their step.

A precomputed turn is generated for a later training step, before that step requests it. The key of a turn is its exact
prompt, the sampler's transforms and its seed. In its step, the turn drafts what that seed samples under the current
policy. Verification corrects any draft, so the store may keep or drop turns freely.

The exactness level depends on the seed: a policy that was trained on tokens drawn with a seed depends on that seed's
noise. The store therefore hands out a turn (as level B) only if no turn with its seed was in an episode that the policy
may have been trained on. ``SeenSeeds`` may report an unused seed as used; then fewer turns are handed out.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from turntree.spec_tree.rules.ledger_arrays import array_keys, keys_array
from turntree.spec_tree.rules.seen_seeds import SeenSeeds


class PrecomputedTurn(NamedTuple):
    """A precomputed turn, or its beginning."""

    tokens: tuple[int, ...]  #: token ids, shape (tokens,)
    step: int  #: training step that the turn is for


@dataclass(slots=True, kw_only=True)
class PrecomputedCounts:
    """Counters since creation."""

    refused: int = 0  #: turns not handed out because the policy was trained on their noise
    dropped: int = 0  #: tokens dropped because the store was full or their step was over


class PrecomputedStore:
    """Precomputed turns by prompt, transforms and seed. Not thread-safe: use it in one event loop.

    Above ``max_tokens``, the oldest turns are dropped. ``trained`` holds the seeds of trained turns from a snapshot.

    Example:
        >>> store = PrecomputedStore(max_tokens=100)
        >>> store.put("prompt", 7, (1, 2), step=2)
        >>> store.take("prompt", 7).tokens
        (1, 2)
        >>> store.take("prompt", 7) is None
        True
    """

    def __init__(self, *, max_tokens: int, trained: SeenSeeds | None = None) -> None:
        self.counts = PrecomputedCounts()
        self.trained = SeenSeeds() if trained is None else trained
        self._max_tokens = max_tokens
        self._tokens = 0
        self._turns: dict[tuple[Hashable, int], PrecomputedTurn] = {}
        self._used: dict[int, int] = {}  # last step for which a seed's noise was used
        self._shown: set[int] = set()  # seeds of turns that went into an episode of the current step

    def put(self, key: Hashable, seed: int, tokens: tuple[int, ...], *, step: int) -> None:
        """Store a turn's tokens so far; ``key`` holds prompt and transforms, as ``turn_storage.storage_key``."""
        self.use(seed, step)
        self._remove((key, seed))
        if not tokens:
            return
        self._turns[key, seed] = PrecomputedTurn(tokens, step)
        self._tokens += len(tokens)
        while self._tokens > self._max_tokens:
            self.counts.dropped += len(self._remove(next(iter(self._turns))))

    def peek(self, key: Hashable, seed: int) -> tuple[int, ...]:
        """Return the stored tokens of a turn, to continue it; empty if there are none."""
        turn = self._turns.get((key, seed))
        return () if turn is None else turn.tokens

    def holds(self, key: Hashable, seed: int) -> bool:
        return (key, seed) in self._turns and seed not in self.trained

    def take(self, key: Hashable, seed: int) -> PrecomputedTurn | None:
        """Remove and return a turn; ``None`` if there is none, or if the policy was trained on its noise."""
        turn = self._turns.get((key, seed))
        if turn is None:
            return None
        self._remove((key, seed))
        if seed in self.trained:
            self.counts.refused += 1
            self.counts.dropped += len(turn.tokens)
            return None
        return turn

    def use(self, seed: int, step: int) -> None:
        """Record that a turn of ``step`` is precomputed with the noise of ``seed``."""
        self._used[seed] = max(step, self._used.get(seed, step))

    def used(self, seed: int) -> bool:
        """Return whether a turn was precomputed with ``seed`` for a step that is not over."""
        return seed in self._used

    def show(self, seed: int) -> None:
        """Record that a turn of ``seed`` went into an episode."""
        self._shown.add(seed)

    def close_step(self, step: int) -> None:
        """Record that the policy was trained on the shown turns; drop the unused turns of ``step`` and before."""
        self.trained.add(self._shown)
        self._shown.clear()
        for key, turn in list(self._turns.items()):
            if turn.step <= step:
                self.counts.dropped += len(self._remove(key))
        self._used = {seed: last for seed, last in self._used.items() if last > step}

    def turns(self) -> Iterator[tuple[Hashable, int, PrecomputedTurn]]:
        """Yield key, seed and turn of all stored turns, the oldest first."""
        for (key, seed), turn in self._turns.items():
            yield key, seed, turn

    def used_seeds(self) -> Iterator[tuple[int, int]]:
        yield from self._used.items()

    @property
    def shown(self) -> frozenset[int]:
        return frozenset(self._shown)

    @property
    def tokens(self) -> int:
        return self._tokens

    def _remove(self, key: tuple[Hashable, int]) -> tuple[int, ...]:
        turn = self._turns.pop(key, None)
        if turn is None:
            return ()
        self._tokens -= len(turn.tokens)
        return turn.tokens


Arrays = dict[str, NDArray[Any]]

#: dtype and number of dimensions of each array of ``precomputed_arrays``
KINDS: dict[str, tuple[DTypeLike, int]] = {
    "keys": (np.uint8, 1),
    "seeds": (np.uint64, 1),
    "steps": (np.int64, 1),
    "lengths": (np.int64, 1),
    "tokens": (np.int32, 1),
    "used_seeds": (np.uint64, 1),
    "used_steps": (np.int64, 1),
    "shown": (np.uint64, 1),
    "trained": (np.uint8, 1),
}


def precomputed_arrays(store: PrecomputedStore) -> Arrays:
    """Return the contents of a store of precomputed turns as arrays, for a snapshot."""
    turns = list(store.turns())
    used = list(store.used_seeds())
    return {
        "keys": keys_array([key for key, _, _ in turns]),
        "seeds": np.array([seed for _, seed, _ in turns], np.uint64),
        "steps": np.array([turn.step for _, _, turn in turns], np.int64),
        "lengths": np.array([len(turn.tokens) for _, _, turn in turns], np.int64),
        "tokens": np.array([token for _, _, turn in turns for token in turn.tokens], np.int32),
        "used_seeds": np.array([seed for seed, _ in used], np.uint64),
        "used_steps": np.array([step for _, step in used], np.int64),
        "shown": np.array(sorted(store.shown), np.uint64),
        "trained": store.trained.table,
    }


def precomputed_from_arrays(arrays: Mapping[str, NDArray[Any]], *, max_tokens: int) -> PrecomputedStore:
    """Return the store that ``precomputed_arrays`` saved; raise ``ValueError`` if the arrays are inconsistent."""
    lengths, tokens, turns = arrays["lengths"], arrays["tokens"], len(arrays["seeds"])
    if not len(arrays["steps"]) == len(lengths) == turns or len(arrays["used_seeds"]) != len(arrays["used_steps"]):
        raise ValueError("the arrays of precomputed turns do not have one entry per turn")
    if (
        lengths.min(initial=0) < 0
        or sum(lengths.tolist()) != len(arrays["tokens"])
        or arrays["tokens"].min(initial=0) < 0
    ):
        raise ValueError("the lengths of the precomputed turns do not match their tokens")
    store = PrecomputedStore(max_tokens=max_tokens, trained=SeenSeeds.of_table(arrays["trained"]))
    ends = lengths.cumsum().tolist()
    tokens = tokens.tolist()
    for key, seed, step, length, end in zip(
        array_keys(arrays["keys"], turns),
        arrays["seeds"].tolist(),
        arrays["steps"].tolist(),
        arrays["lengths"].tolist(),
        ends,
        strict=True,
    ):
        store.put(key, seed, tuple(tokens[end - length : end]), step=step)
    for seed, step in zip(arrays["used_seeds"].tolist(), arrays["used_steps"].tolist(), strict=True):
        store.use(seed, step)
    for seed in arrays["shown"].tolist():
        store.show(seed)
    return store
