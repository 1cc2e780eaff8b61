"""Turns in a bounded token log: new turns evict the oldest turns.

The log is a ring, written at its head. Turns in the way of the head go to the owner of the store, which writes them
again or drops them. The log starts small and grows by copying until it has its full size; positions stay the same.

A granule (a block of ``GRANULE`` positions) belongs to the turn in one slot, or is free (slot 0). Only positions from
``GRANULE`` to the end of the log hold turns.

Not thread-safe for writers. Readers may use ``log`` and ``keys`` at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.layout import FOLLOWERS, GRANULE, LiveTurns, TokenLog, TurnKeys, token_log, turn_keys
from turntree.spec_tree.kernels.log_kernels import OPENED, drop_turns, index_log, open_turns, read_turn, write_turns

_Positions = TypeVar("_Positions", int, NDArray[np.int64])
_FIRST_CAPACITY = 1 << 17
_FIRST_SLOTS = 1 << 10


@dataclass(slots=True, eq=False)
class LogEntry:
    """A turn in the log."""

    slot: int  #: index of the turn in ``TurnKeys``
    start: int  #: position of the turn's ``START`` in the log
    keys: NDArray[np.uint64]  #: keys of the exact state, tool history, task and environment, shape (4,)
    tokens: int = 0  #: number of tokens; the owner updates it while the turn is live
    live: int = -1  #: row of the turn in ``LiveTurns``; -1 once the turn is finished
    seen: int = 0  #: set by the owner of the store: time when the turn was written
    again: bool = False  #: set by the owner of the store: whether the turn was written again when the head reached it


def granules(positions: _Positions) -> _Positions:
    """Round positions, a number or an array, up to whole granules."""
    return (positions + GRANULE - 1) // GRANULE * GRANULE


class TurnStore:
    """The log, the keys of its turns, and the free space.

    Args:
        max_tokens: Number of positions of the log at full size.
    """

    def __init__(self, max_tokens: int) -> None:
        self._capacity = max(granules(max_tokens), 4 * GRANULE)
        first = min(_FIRST_CAPACITY, self._capacity)
        self.log: TokenLog = token_log(first)._replace(votes=np.zeros((_FIRST_SLOTS, 2), np.int64))
        self.keys: TurnKeys = turn_keys(_FIRST_SLOTS)
        self.head: NDArray[np.int64] = np.zeros(1, np.int64)
        self.head[0] = GRANULE
        self.cleared = first  #: positions from the head to here belong to no turn
        self._turns: list[LogEntry | None] = [None] * _FIRST_SLOTS
        self.free = list(range(_FIRST_SLOTS - 1, 0, -1))  #: unused slots
        self._followers = np.empty(FOLLOWERS, np.int32)

    @property
    def capacity(self) -> int:
        """Number of positions of the log at full size."""
        return self._capacity

    @property
    def longest(self) -> int:
        """Maximum length of a turn that is kept, in tokens."""
        return self._capacity // 4

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in (*self.log, self.keys))

    def make_room(self, positions: int, evict: Callable[[LogEntry], None]) -> None:
        """Free positions, at most half the capacity, from the head on.

        ``evict`` is called with each turn in the way while it can still be read, and must ``drop`` the turn.
        """
        positions = granules(positions)
        while True:
            head = int(self.head[0])
            size = len(self.log.tokens)
            # A turn never wraps around: the end of the log stays empty if a turn does not fit there.
            if head + positions > size - GRANULE:
                if size < self._capacity:
                    self._grow(head + positions + GRANULE)
                    continue
                self._evict(self.cleared, size, evict)
                self.log.owner[head // GRANULE :] = 0
                self.head[0] = self.cleared = GRANULE
                continue
            if head + positions <= self.cleared:
                return
            # Evict a 64th of the log at least, so that most calls find free positions.
            stop = min(size, max(head + positions, self.cleared + granules(size // 64)))
            self._evict(self.cleared, stop, evict)
            self.cleared = stop

    def write(
        self, sampled: NDArray[np.int32], keys: NDArray[np.uint64], *, live: int = -1, turns: LiveTurns | None = None
    ) -> LogEntry:
        """Write a turn, ``keys`` of shape (4,), at the head; it and two granules must fit there.

        For a live turn, ``live`` is its row of ``turns``.
        """
        start = int(self.head[0])
        stop = start + granules(len(sampled) + 2 + (GRANULE if live >= 0 else 0))
        (slot,) = self._slots(1)
        turn = LogEntry(slot=slot, start=start, keys=keys, tokens=len(sampled), live=live)
        self._turns[slot] = turn
        turn_arrays = np.array([[0, len(sampled)]]), np.array([slot]), keys[None]
        write_turns(np.array([start, stop]), sampled, *turn_arrays, self.log, self.keys)
        self.head[0] = stop
        if turns is not None and live >= 0:
            turns.turn[live] = slot
            turns.position[live] = start + len(sampled)
            turns.limit[live] = stop
        return turn

    def open(self, keys: Sequence[NDArray[np.uint64]], rows: NDArray[np.int64], turns: LiveTurns) -> list[LogEntry]:
        """Begin live turns in ``rows`` of ``turns`` at the head, where enough positions must be free."""
        head, slots = int(self.head[0]), self._slots(len(keys))
        open_turns(rows, np.array(slots), np.zeros(0, np.int32), turns.records, self.head, self.log, self.keys)
        opened = []
        for i, (slot, key, row) in enumerate(zip(slots, keys, rows.tolist(), strict=True)):
            self._turns[slot] = turn = LogEntry(slot=slot, start=head + i * OPENED, keys=key, live=row)
            opened.append(turn)
        return opened

    def write_all(
        self,
        sampled: NDArray[np.int32],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int64],
        keys: Sequence[NDArray[np.uint64]],
    ) -> list[LogEntry]:
        """Write finished turns ``sampled[begins[i]:begins[i] + lengths[i]]`` at the head, where they must fit."""
        slots = self._slots(len(keys))
        bounds = np.cumsum(np.concatenate([self.head, granules(lengths + 2)]))
        backoff_lists = np.concatenate(keys).reshape(-1, 4)
        spans = np.stack([begins, begins + lengths], axis=1)
        write_turns(bounds, sampled, spans, np.array(slots), backoff_lists, self.log, self.keys)
        self.head[0] = bounds[-1]
        turns = list(map(LogEntry, slots, bounds[:-1].tolist(), keys, lengths.tolist()))
        for slot, turn in zip(slots, turns, strict=True):
            self._turns[slot] = turn
        return turns

    def read(self, turn: LogEntry) -> NDArray[np.int32]:
        """Return the tokens of a turn."""
        out = np.empty(turn.tokens, np.int32)
        return out[: read_turn(turn.start, out, self.log)]

    def finish(self, turn: LogEntry, turns: LiveTurns) -> None:
        """Mark a live turn as finished; free its unused positions if they are the last before the head."""
        position, limit = int(turns.position[turn.live]), int(turns.limit[turn.live])
        stop = granules(position + 2)
        # Only unused positions right before the head can be freed.
        if limit == self.head[0] and stop < limit:
            self.log.owner[stop // GRANULE : limit // GRANULE] = 0
            self.head[0] = stop
        turn.live = -1

    def drop(self, turn: LogEntry) -> None:
        """Remove a turn; its tokens stay until they are overwritten, but are no longer found."""
        self.drop_all([turn])

    def drop_all(self, turns: Sequence[LogEntry]) -> None:
        if not turns:
            return
        slots = [turn.slot for turn in turns]
        drop_turns(np.array([turn.start for turn in turns]), np.array(slots), self._followers, self.log, self.keys)
        self.log.votes[slots] = 0
        for slot in slots:
            self._turns[slot] = None
        self.free += slots

    def holds(self, turn: LogEntry) -> bool:
        """Return whether a turn is still in the log, where it was written."""
        return self._turns[turn.slot] is turn

    def turns(self) -> Sequence[LogEntry]:
        return [turn for turn in self._turns if turn is not None]

    def _slots(self, count: int) -> list[int]:
        old = size = len(self._turns)
        while len(self.free) + size - old < count:
            size *= 2
        if size > old:
            keys = turn_keys(size)
            keys[:old] = self.keys
            self.keys = keys
            votes = np.zeros((size, 2), np.int64)
            votes[:old] = self.log.votes
            # Readers that draft with the old keys must not see the new slots.
            self.log = self.log._replace(owner=self.log.owner.copy(), votes=votes)
            self._turns += [None] * (size - old)
            self.free = list(range(size - 1, old - 1, -1)) + self.free
        taken = self.free[len(self.free) - count :]
        del self.free[len(self.free) - count :]
        return taken[::-1]

    def _evict(self, start: int, stop: int, evict: Callable[[LogEntry], None]) -> None:
        for slot in np.unique(self.log.owner[start // GRANULE : stop // GRANULE]).tolist():
            turn = self._turns[slot]
            if turn is not None:
                evict(turn)

    def _grow(self, needed: int) -> None:
        size = len(self.log.tokens)
        while size < min(needed, self._capacity):
            size = min(2 * size, self._capacity)
        old, new = self.log, token_log(size, self.log)
        head = int(self.head[0])
        new.tokens[:head] = old.tokens[:head]
        new.links[:, :head] = old.links[:, :head]
        new.owner[: len(old.owner)] = old.owner
        index_log(head, new, self.keys)  # the size of the hash index changes too, so rebuild it
        self.log = new
        self.cleared = size
