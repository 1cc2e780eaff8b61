"""The ledger of stored turns: each may be replayed once, at a known level of exactness.

A stored turn is a draw from the distribution that is stored with it, and a rule that
replays it as such is exact under conditions that this module keeps:

- A turn is handed out once: ``use`` raises on the second time. Two replays of
  one draw would not be two draws.
- A turn is handed out only after the step in which it was stored is closed.
  Within a step short turns finish first, so taking what is stored so far
  would take short turns more often than the policy samples them.
- Which turn is handed out, and which is dropped for room, depends on no turn's
  content: not on its reward, and not on its length either. So a turn is charged
  for the tokens that it could have had, not for those that it has; and of the
  turns of one step those with the lowest random rank go first, not the
  earliest, which are the short ones.

Not covered: turns that were abandoned before they ended are not stored, so turns
cut off by a deadline are missing among those that can be handed out.
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
    """A stored turn was requested a second time, or was dropped."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoredTurn:
    """A turn sampled at a state, with the distribution that it was drawn from."""

    tokens: NDArray[np.int32]
    """Token ids, shape (tokens,)."""
    logprobs: NDArray[np.float32]
    """Natural log-probability of each token under the distribution that it was drawn from, shape (tokens,)."""
    top_ids: NDArray[np.int32]
    """Most probable tokens of that distribution at each position, shape (tokens, k); k may be 0."""
    top_logprobs: NDArray[np.float32]
    """Their log-probabilities, shape (tokens, k)."""
    seed: int | None
    """Seed of the noise; ``None`` if it was not from a single seed."""
    version: int
    """Version of the policy that drew it."""
    room: int
    """Tokens that it could have had: the amount it is charged."""
    stopped: bool
    """Whether it ended by itself; otherwise ``room`` or the context was exhausted."""

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if not 1 <= count <= self.room:
            raise ValueError(f"a stored turn has 1 to room={self.room} tokens, got {count}")
        if self.logprobs.shape != (count,):
            raise ValueError(f"expected {count} log-probabilities, one a token, got shape {self.logprobs.shape}")
        if self.top_ids.shape != self.top_logprobs.shape or self.top_ids.ndim != 2 or len(self.top_ids) != count:
            raise ValueError(
                f"expected top tokens of shape ({count}, k), got ids {self.top_ids.shape} and log-probabilities "
                f"{self.top_logprobs.shape}"
            )


class ReplayedTurn(NamedTuple):
    """The right to replay one turn, now used."""

    number: int
    """Number of the turn in the ledger."""
    turn: StoredTurn
    level: Level
    """Exactness of a replay by an exact rule: C if the policy was trained on the turn, else B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStats:
    """Contents and counts of a ledger."""

    turns: int
    """Turns that can still be handed out, those of the running step included."""
    tokens: int
    """Tokens of these turns."""
    charged: int
    """Room of these turns, which is bounded."""
    added: int
    """Turns stored since the beginning."""
    used: int
    """Turns handed out."""
    dropped: int
    """Turns dropped for room."""


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
    """Turns of one step in the order in which they would be dropped; may still contain removed ones."""

    heap: list[tuple[int, int]] = field(default_factory=list)
    """Ranks and numbers."""
    held: int = 0
    """Turns still held."""


@dataclass(slots=True)
class _Counts:
    tokens: int = 0
    charged: int = 0
    used: int = 0
    dropped: int = 0


class Ledger:
    """Stored turns by opaque key, each good for one use. Threads may share it.

    Args:
        max_tokens: Most tokens that the turns held could have had; those of the oldest step go first.

    Example:
        >>> ledger = Ledger(max_tokens=100)
        >>> one = np.zeros((1, 0))
        >>> turn = StoredTurn(
        ...     tokens=np.array([7], np.int32), logprobs=np.array([-0.5], np.float32), top_ids=one.astype(np.int32),
        ...     top_logprobs=one.astype(np.float32), seed=1, version=0, room=4, stopped=True)
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
            raise ValueError(f"a ledger needs room for at least one token, got max_tokens={max_tokens}")
        self.max_tokens = max_tokens
        self._lock = threading.Lock()
        self._entries: dict[int, _Entry] = {}
        self._by_key: dict[Hashable, dict[int, list[tuple[int, int]]]] = {}
        """Ranks and numbers of a key's turns by step, in order, so that none is found by a walk over all."""
        self._by_step: dict[int, _Ranks] = {}
        self._step = 0
        self._floor = -1
        """Highest rank dropped in the running step: later turns below it must not be kept."""
        self._next = 0
        self._counts = _Counts()

    @property
    def step(self) -> int:
        """Steps closed so far."""
        return self._step

    @property
    def queued(self) -> int:
        """Turns in the order in which they would be dropped, with at most as many removed ones as are held."""
        return sum(len(ranks.heap) for ranks in self._by_step.values())

    def add(self, key: Hashable, turn: StoredTurn, *, rank: int, emitted: bool = True, trained: bool = False) -> int:
        """Store a turn and return its number.

        Args:
            key: The exact state and all else that the distribution depends on, such as the sampler's transforms.
            rank: A random number, at least 0; must not depend on the turn's tokens. If there is no room for
                all turns of a step those with the highest ranks stay. A second turn of the same key, step and rank
                is the same draw, sampled again, and is not stored.
            emitted: Whether the turn went into an episode, so that the policy may be trained on it; ``False``
                for one that was precomputed and is in no episode.
            trained: Whether the policy was already trained on it, or on a turn that it was made of.
        """
        with self._lock:
            held = self._by_key.get(key, {}).get(self._step, [])
            place = bisect_left(held, (rank, -1))
            if place < len(held) and held[place][0] == rank:
                return held[place][1]
            number, self._next = self._next, self._next + 1
            if rank <= self._floor:
                self._counts.dropped += 1
                return number
            self._hold(number, _Entry(key=key, turn=turn, step=self._step, rank=rank, emitted=emitted, trained=trained))
            while self._counts.charged > self.max_tokens:
                self._drop()
            return number

    def take(self, key: Hashable, *, pick: int = 0) -> ReplayedTurn | None:
        """Use a turn of ``key`` from the latest closed step that has one; ``None`` if there is none.

        Args:
            pick: A random number that chooses among equals; must not depend on the turns' tokens.
        """
        with self._lock:
            equals = self._equals(key)
            return self._use(equals[pick % len(equals)][1]) if equals else None

    def waiting(self, key: Hashable) -> list[StoredTurn]:
        """The turns among which ``take`` would choose."""
        with self._lock:
            return [self._entries[number].turn for _, number in self._equals(key)]

    def use(self, number: int) -> ReplayedTurn:
        """Use the turn with this number.

        Raises:
            TurnUnavailable: If it was used or dropped, or if its step is still running.
        """
        with self._lock:
            if not 0 <= number < self._next:
                raise TurnUnavailable(f"there is no turn {number}; the ledger has numbered {self._next} so far")
            if number not in self._entries:
                raise TurnUnavailable(f"turn {number} was used already or dropped for room; a stored turn is one draw")
            if self._entries[number].step == self._step:
                raise TurnUnavailable(f"turn {number} belongs to the running step; call close_step() first")
            return self._use(number)

    def close_step(self, *, trained: bool = True) -> None:
        """Close the step after a policy update: turns stored until now can be handed out from now on.

        Args:
            trained: Whether the policy may have been trained on the turns that went into episodes. Marking
                too many only weakens a claim, from B to C.
        """
        with self._lock:
            self._step += 1
            self._floor = -1
            for entry in self._entries.values():
                entry.trained |= trained and entry.emitted

    def stats(self) -> LedgerStats:
        """Contents and counts of the ledger."""
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
        self._counts.charged += entry.turn.room

    def _equals(self, key: Hashable) -> list[tuple[int, int]]:
        """Ranks and numbers in the order of rank, as the order in which they were sampled is chance."""
        by_step = self._by_key.get(key, {})
        return next((by_step[step] for step in reversed(by_step) if step < self._step), [])

    def _use(self, number: int) -> ReplayedTurn:
        entry = self._remove(number)
        self._counts.used += 1
        return ReplayedTurn(number, entry.turn, Level.C if entry.trained else Level.B)

    def _drop(self) -> None:
        """Drop the turn of lowest rank of the oldest step."""
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
        self._counts.charged -= entry.turn.room
        ranks = self._by_step[entry.step]
        ranks.held -= 1
        if not ranks.held:
            del self._by_step[entry.step]
        elif len(ranks.heap) > 2 * ranks.held:
            ranks.heap = [(rank, n) for rank, n in ranks.heap if n in self._entries]
            heapq.heapify(ranks.heap)
        return entry
