"""The log behind an sharing: the turns that several stores gave, in order, within a size limit.

Invariant: a reader gets each turn of the others at most once, and its own never.
A turn that is sent twice, because an answer was lost, is kept once. When the log
is full the oldest batches go; a late reader learns how many turns
it missed. Not thread-safe, and in the memory of one process.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.sharing.turn_batch import TurnBatch


class Cursor(NamedTuple):
    """A reader's position in the log."""

    log: str
    """Id of the log; another log is read from its start."""
    turns: int
    """Number of turns of the log already read."""


class News(NamedTuple):
    """Turns that are new to a reader."""

    batches: list[TurnBatch]
    """Turns of others, oldest first."""
    cursor: Cursor
    """The cursor of the next call."""
    missed: int
    """Turns that the log dropped before they were read, or that exceeded the limit of the call."""


class _Entry(NamedTuple):
    source: str
    first: int
    """Number of turns of the log before these."""
    batch: TurnBatch


class TurnLog:
    """A bounded, append-only log of finished turns.

    Example:
        >>> from turntree.spec_tree import DialogueState
        >>> log = TurnLog(max_bytes=1 << 20)
        >>> log.append("a", 0, TurnBatch.of([DialogueState(exact=1)], [[7, 8]]))
        1
        >>> [len(batch) for batch in log.read("b", None).batches], log.read("a", None).batches
        ([1], [])
    """

    def __init__(self, max_bytes: int) -> None:
        """Make an empty log.

        Args:
            max_bytes: Most bytes of the turns that are kept.

        Raises:
            ValueError: If it is not positive.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be positive, got {max_bytes}")
        self.max_bytes = max_bytes
        self._name = secrets.token_hex(8)
        self._entries: deque[_Entry] = deque()
        self._known: dict[str, int] = {}
        self._turns = 0
        self.nbytes = 0
        """Bytes of the turns held."""
        self.dropped = 0
        """Turns dropped."""

    @property
    def held(self) -> int:
        """Turns held."""
        return sum(len(entry.batch) for entry in self._entries)

    def append(self, source: str, first: int, batch: TurnBatch) -> int:
        """Add turns; known ones are left out.

        Args:
            source: Sender of the turns, a name for each life of a process.
            first: Number of turns that the source sent before these.

        Returns:
            Number of new turns.
        """
        known = max(0, self._known.get(source, 0) - first)
        self._known[source] = max(self._known.get(source, 0), first + len(batch))
        new = batch.select(np.arange(len(batch)) >= known)
        if not len(new):
            return 0
        self._entries.append(_Entry(source, self._turns, new))
        self._turns += len(new)
        self.nbytes += new.nbytes
        while self.nbytes > self.max_bytes and self._entries:
            old = self._entries.popleft().batch
            self.nbytes -= old.nbytes
            self.dropped += len(old)
        return len(new)

    def read(
        self,
        source: str,
        cursor: Cursor | None,
        *,
        wanted: Callable[[TurnBatch], NDArray[np.bool_]] | None = None,
        max_tokens: int | None = None,
    ) -> News:
        """The turns that others added since ``cursor``.

        Args:
            source: The reader; its own turns are left out.
            cursor: Cursor of the last call; ``None`` or the cursor of another log reads from the start.
            wanted: Selects the turns of a batch that are of use to the reader, shape (turns,).
            max_tokens: Most tokens; the newest turns go first.
        """
        behind = cursor.turns if cursor is not None and cursor.log == self._name else None
        start = self._entries[0].first if self._entries else self._turns
        missed = 0 if behind is None else max(0, start - behind)
        batches: list[TurnBatch] = []
        room = max_tokens
        for entry in reversed(self._entries):
            if behind is not None and entry.first < behind:
                break
            if entry.source == source:
                continue
            batch = entry.batch
            if wanted is not None:
                of_use = wanted(batch)
                if not of_use.any():
                    continue
                batch = batch.select(of_use)
            if room is not None:
                fitting = batch.newest(room)
                missed += len(batch) - len(fitting)
                # Once a turn is left out, all older ones are too.
                room = 0 if len(fitting) < len(batch) else room - int(fitting.lengths.sum(dtype=np.int64))
                batch = fitting
            if len(batch):
                batches.append(batch)
        return News(batches[::-1], Cursor(self._name, self._turns), missed)
