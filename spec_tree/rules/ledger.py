"""Ledger of stored turns: each turn may be replayed once, at a known level of exactness (``level``).

A stored turn is a draw from the distribution stored with it. To replay a turn is to use the stored turn, verified
against the policy, in place of a new one. A replay is exact only if:

- The turn is used once: two replays of one draw would not be independent draws.
- The training step that stored the turn is closed. Short turns finish first, so the running step's turns would
  contain short turns more often than the policy samples them.
- The choice of turns to use or to drop depends on no turn's content, such as reward or length. So a turn counts
  with its token limit, not its length. Within a step, turns are dropped by a random rank, lowest first. Dropping the
  earliest turns first would drop the short ones.

Not covered: turns abandoned before their end, for example at a deadline, are not stored.
"""

from __future__ import annotations

import heapq
import threading
from bisect import bisect_left, insort
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.errors import ForestError
from turntree.spec_tree.rules.level import Level


class TurnUnavailable(ForestError):
    """The requested turn was used, was dropped, or belongs to the running step."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredTurn:
    """A turn sampled at a state, with the distribution that it was drawn from."""

    tokens: NDArray[np.int32]  #: shape (tokens,)
    logprobs: NDArray[np.float32]  #: natural log-probabilities, each under its token's distribution, shape (tokens,)
    top_ids: NDArray[np.int32]  #: most probable tokens of that distribution, shape (tokens, k); k may be 0
    top_logprobs: NDArray[np.float32]  #: shape (tokens, k)
    seed: int | None  #: seed of the noise; ``None`` if the turn has no seed or several
    version: int  #: version of the policy that sampled the turn
    token_limit: int  #: maximum length that the turn could have had; the ledger counts this number, not the length
    stopped: bool  #: whether the policy ended the turn, not the token limit or the context length

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if not 1 <= count <= self.token_limit:
            raise ValueError(f"a stored turn has 1 to token_limit={self.token_limit} tokens, got {count}")
        # Every array has one row per token.
        if self.logprobs.shape != (count,):
            raise ValueError(f"expected {count} log-probabilities, one per token, got shape {self.logprobs.shape}")
        if self.top_ids.shape != self.top_logprobs.shape or self.top_ids.ndim != 2 or len(self.top_ids) != count:
            raise ValueError(
                f"expected top tokens of shape ({count}, k), got ids {self.top_ids.shape} and log-probabilities "
                f"{self.top_logprobs.shape}"
            )


class ReplayedTurn(NamedTuple):
    """A stored turn that has been taken for its one replay."""

    number: int  #: number in the ledger
    turn: StoredTurn
    level: Level  #: exactness of a replay by an exact rule: C if the policy was trained on the turn, else B


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStats:
    """Contents and counts of a ledger."""

    turns: int  #: unused turns, including turns of the running step
    tokens: int  #: tokens of these turns
    charged: int  #: sum of the token limits of these turns, at most ``Ledger(max_tokens)``
    added: int  #: turns stored so far
    used: int
    dropped: int  #: turns dropped because the ledger was full


@dataclass(slots=True, kw_only=True)
class _Entry:
    key: Hashable
    turn: StoredTurn
    step: int
    rank: int
    emitted: bool
    trained: bool


@dataclass(slots=True)
class _Ranks:
    #: (rank, turn number); removed turns stay in the heap until it is rebuilt
    heap: list[tuple[int, int]] = field(default_factory=list)
    held: int = 0  #: turns of the heap that are still stored


@dataclass(slots=True)
class _Counts:
    tokens: int = 0
    charged: int = 0
    used: int = 0
    dropped: int = 0


class Ledger:
    """Stored turns by key; each turn can be used once. Thread-safe.

    Args:
        max_tokens: Bound on the sum of the turns' token limits; turns of the oldest step are dropped first.

    Example:
        >>> ledger = Ledger(max_tokens=100)
        >>> one = np.zeros((1, 0))
        >>> turn = StoredTurn(
        ...     tokens=np.array([7], np.int32), logprobs=np.array([-0.5], np.float32), top_ids=one.astype(np.int32),
        ...     top_logprobs=one.astype(np.float32), seed=1, version=0, token_limit=4, stopped=True)
        >>> number = ledger.add("state", turn, rank=17)
        >>> ledger.take("state") is None  # its step is still running
        True
        >>> ledger.close_step()
        >>> ledger.take("state").level
        <Level.C: 'C'>
        >>> ledger.take("state") is None
        True
    """

    def __init__(self, *, max_tokens: int) -> None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens of a ledger must be at least 1, got {max_tokens}")
        self.max_tokens = max_tokens
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}
        #: by key and step: sorted list of (rank, turn number), so that no lookup scans all turns
        self._by_key: dict[Hashable, dict[int, list[tuple[int, int]]]] = {}
        self._by_step: dict[int, _Ranks] = {}
        self._step = 0
        self._floor = -1  #: highest rank dropped in the running step; later turns with a lower rank must be dropped too
        self._next = 0
        self._counts = _Counts()

    @property
    def step(self) -> int:
        return self._step

    @property
    def queued(self) -> int:
        """Return the length of all drop queues; entries of removed turns count (at most one per stored turn)."""
        return sum(len(ranks.heap) for ranks in self._by_step.values())

    def add(self, key: Hashable, turn: StoredTurn, *, rank: int, emitted: bool = True, trained: bool = False) -> int:
        """Store a turn and return its number.

        Args:
            key: The exact state, and whatever else the distribution depends on, such as the sampling transforms.
            rank: A random number, at least 0, independent of the turn's tokens. If not all turns of a step fit, the
                turns with the highest ranks stay. A second turn with the same key, step and rank is a repetition of the
                same draw, and is not stored.
            emitted: Whether the turn went into an episode, so that the policy may be trained on it; ``False`` for
                precomputed turns (sampled before a caller asked) that no episode contains.
            trained: Whether the policy was already trained on the turn, or on a turn that it was built from.
        """
        with self._lock:
            held = self._by_key.get(key, {}).get(self._step, [])
            index = bisect_left(held, (rank, -1))
            if index < len(held) and held[index][0] == rank:
                return held[index][1]
            number, self._next = self._next, self._next + 1
            # A turn of higher rank was dropped, so keeping this turn would favour turns that finish late.
            if rank <= self._floor:
                self._counts.dropped += 1
                return number
            self._hold(number, _Entry(key=key, turn=turn, step=self._step, rank=rank, emitted=emitted, trained=trained))
            while self._counts.charged > self.max_tokens:
                self._drop()
            return number

    def take(self, key: Hashable, *, pick: int = 0) -> ReplayedTurn | None:
        """Take a turn of ``key`` from the latest closed step that has any; return ``None`` if no step has.

        Args:
            pick: A random number, independent of the turns' tokens, that selects one of several turns.
        """
        with self._lock:
            equals = self._equals(key)
            return self._use(equals[pick % len(equals)][1]) if equals else None

    def waiting(self, key: Hashable) -> list[StoredTurn]:
        """Return the turns among which ``take`` would choose."""
        with self._lock:
            return [self._entries[number].turn for _, number in self._equals(key)]

    def use(self, number: int) -> ReplayedTurn:
        """Take the turn with this number, which marks it as used.

        Raises:
            TurnUnavailable: If the turn was used or dropped, or if its step is still running.
        """
        with self._lock:
            if not 0 <= number < self._next:
                raise TurnUnavailable(f"there is no turn {number}; expected a number from 0 to {self._next - 1}")
            if number not in self._entries:
                raise TurnUnavailable(f"turn {number} was already used or dropped: a stored turn can be used once")
            if self._entries[number].step == self._step:
                raise TurnUnavailable(f"turn {number} belongs to the running step; call close_step() first")
            return self._use(number)

    def close_step(self, *, trained: bool = True) -> None:
        """Close the step after a policy update, which makes the turns stored so far available.

        Args:
            trained: Whether the policy may have been trained on the turns that went into episodes. If unsure,
                pass ``True``: it only weakens the claimed level from B to C.
        """
        with self._lock:
            self._step += 1
            self._floor = -1
            for entry in self._entries.values():
                entry.trained |= trained and entry.emitted

    def stats(self) -> LedgerStats:
        with self._lock:
            return LedgerStats(
                turns=len(self._entries),
                tokens=self._counts.tokens,
                charged=self._counts.charged,
                added=self._next,
                used=self._counts.used,
                dropped=self._counts.dropped,
            )

    def _hold(self, number: int, entry: _Entry) -> None:
        self._entries[number] = entry
        insort(self._by_key.setdefault(entry.key, {}).setdefault(entry.step, []), (entry.rank, number))
        ranks = self._by_step.setdefault(entry.step, _Ranks())
        ranks.held += 1
        heapq.heappush(ranks.heap, (entry.rank, number))
        self._counts.tokens += len(entry.turn.tokens)
        self._counts.charged += entry.turn.token_limit

    def _equals(self, key: Hashable) -> list[tuple[int, int]]:
        # in order of rank, because the order in which turns finish depends on timing
        by_step = self._by_key.get(key, {})
        return next((by_step[step] for step in reversed(by_step) if step < self._step), [])

    def _use(self, number: int) -> ReplayedTurn:
        entry = self._remove(number)
        self._counts.used += 1
        return ReplayedTurn(number, entry.turn, Level.C if entry.trained else Level.B)

    def _drop(self) -> None:
        step, ranks = next(iter(self._by_step.items()))
        rank, number = heapq.heappop(ranks.heap)
        if number not in self._entries:
            return
        self._remove(number)
        self._counts.dropped += 1
        if step == self._step:
            self._floor = rank

    def _remove(self, number: int) -> _Entry:
        entry = self._entries.pop(number)
        by_step = self._by_key[entry.key]
        held = by_step[entry.step]
        del held[bisect_left(held, (entry.rank, number))]
        if not held:
            del by_step[entry.step]
        if not by_step:
            del self._by_key[entry.key]
        self._counts.tokens -= len(entry.turn.tokens)
        self._counts.charged -= entry.turn.token_limit
        ranks = self._by_step[entry.step]
        ranks.held -= 1
        if not ranks.held:
            del self._by_step[entry.step]
        elif len(ranks.heap) > 2 * ranks.held:
            ranks.heap = [(rank, n) for rank, n in ranks.heap if n in self._entries]
            heapq.heapify(ranks.heap)
        return entry
