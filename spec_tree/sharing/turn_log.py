"""The log of turns that several draft stores sent, in order and within a size limit.

A reader receives each turn of other senders at most once, and never its own turns. If a reply is lost, the sender sends
its turns again; the log stores them once. A full log drops its oldest batches, and a late reader learns how many turns
it missed. Not thread-safe; held in the memory of one process.
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

    log: str  #: id of the log; a log with another id is read from its start
    turns: int  #: turns of the log already read


class News(NamedTuple):
    """Turns that are new to a reader."""

    batches: list[TurnBatch]  #: turns of other senders, oldest first
    cursor: Cursor  #: cursor to pass to the next call
    missed: int  #: turns dropped before this reader read them, or left out because of the call's limit


class _Entry(NamedTuple):
    source: str
    first: int  #: number of turns in the log before this batch
    batch: TurnBatch


class TurnLog:
    """A bounded, append-only log of at most ``max_bytes`` of finished turns.

    Example:
        >>> from turntree.spec_tree import DialogueState
        >>> log = TurnLog(max_bytes=1 << 20)
        >>> log.append("a", 0, TurnBatch.of([DialogueState(exact=1)], [[7, 8]]))
        1
        >>> [len(batch) for batch in log.read("b", None).batches], log.read("a", None).batches
        ([1], [])
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be positive, got {max_bytes}")
        self.max_bytes = max_bytes
        self._name = secrets.token_hex(8)
        self._entries: deque[_Entry] = deque()
        self._known: dict[str, int] = {}
        self._turns = 0
        self.nbytes = 0  #: bytes of the turns held
        self.dropped = 0  #: turns dropped

    @property
    def held(self) -> int:
        """Turns held."""
        return sum(len(entry.batch) for entry in self._entries)

    def append(self, source: str, first: int, batch: TurnBatch) -> int:
        """Add the turns of ``batch`` that are not in the log yet; return their number.

        ``source`` names the sender; after a restart it takes a new name. ``first`` is the number of turns it sent
        earlier.
        """
        # A sender repeats turns after a failed call; the count of its turns tells which turns are in the log already.
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
        """Return the turns that senders other than ``source`` added since ``cursor``.

        With ``None`` or a cursor of another log, reading begins at the start. ``wanted`` returns which turns of a batch
        to read, shape (turns,). Of these, the newest turns are returned, at most ``max_tokens`` tokens.
        """
        seen = cursor.turns if cursor is not None and cursor.log == self._name else None
        start = self._entries[0].first if self._entries else self._turns
        missed = 0 if seen is None else max(0, start - seen)
        batches: list[TurnBatch] = []
        tokens_left = max_tokens
        for entry in reversed(self._entries):
            # Cursors always point to the end of the log, so a reader has seen a batch wholly or not at all.
            if seen is not None and entry.first < seen:
                break
            if entry.source == source:
                continue
            batch = entry.batch
            if wanted is not None:
                chosen = wanted(batch)
                if not chosen.any():
                    continue
                batch = batch.select(chosen)
            if tokens_left is not None:
                newest = batch.newest(tokens_left)
                missed += len(batch) - len(newest)
                # Once a turn is left out, all older turns are left out too.
                tokens_left = 0 if len(newest) < len(batch) else tokens_left - int(newest.lengths.sum(dtype=np.int64))
                batch = newest
            if len(batch):
                batches.append(batch)
        return News(batches[::-1], Cursor(self._name, self._turns), missed)
