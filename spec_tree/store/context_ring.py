"""Contexts of live turns in a ring buffer: the oldest give way when it is full."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.indexing import index_context
from turntree.spec_tree.kernels.layout import ContextLog, LiveTurns, context_log

_FIRST_CAPACITY = 1 << 14


class ContextRing:
    """Contexts of live turns, indexed one by one. Not thread-safe for writers."""

    def __init__(self, max_tokens: int, window: int) -> None:
        """Make an empty ring.

        Args:
            max_tokens: Positions at full size, rounded down to a power of two.
            window: Last tokens kept of one context.
        """
        self._capacity = 1 << (max_tokens.bit_length() - 1)
        self._window = min(window, self._capacity // 2)
        self.log: ContextLog = context_log(min(_FIRST_CAPACITY, self._capacity))
        self._head = 1
        self._held: deque[tuple[int, int, int]] = deque()
        """Start, stop and row of ``LiveTurns``, oldest first."""

    @property
    def bytes(self) -> int:
        """Memory, in bytes."""
        return sum(array.nbytes for array in self.log)

    def add(self, row: int, asked: NDArray[np.int32], turns: LiveTurns) -> None:
        """Store the context of row ``row`` of ``turns``, shape (tokens,)."""
        asked = asked[max(0, len(asked) - self._window) :]
        turns.context[row] = 0
        if len(asked) < 2:
            return
        start = self._room(len(asked), turns)
        self.log.tokens[start : start + len(asked)] = asked
        index_context(start, start + len(asked), self.log)
        turns.context[row] = start, start + len(asked)
        self._held.append((start, start + len(asked), row))
        self._head = start + len(asked)

    def _room(self, tokens: int, turns: LiveTurns) -> int:
        """Position with so many free tokens."""
        self._release(turns)
        if self._head + tokens > len(self.log.tokens) < self._capacity:
            self._grow(self._head + tokens)
        if self._head + tokens > len(self.log.tokens):
            while self._held and self._held[0][0] >= self._head:
                self._give_way(turns)
            self._head = 1
        while self._held and self._head <= self._held[0][0] < self._head + tokens:
            self._give_way(turns)
        return self._head

    def _release(self, turns: LiveTurns) -> None:
        """Forget the oldest contexts whose turns have ended."""
        while self._held and tuple(turns.context[self._held[0][2]].tolist()) != self._held[0][:2]:
            self._held.popleft()
        if not self._held:
            self._head = 1

    def _give_way(self, turns: LiveTurns) -> None:
        start, stop, row = self._held.popleft()
        if tuple(turns.context[row].tolist()) == (start, stop):
            turns.context[row] = 0

    def _grow(self, needed: int) -> None:
        size = len(self.log.tokens)
        while size < min(needed, self._capacity):
            size *= 2
        old, self.log = self.log, context_log(size)
        self.log.tokens[: len(old.tokens)] = old.tokens
        for start, stop, _ in self._held:
            index_context(start, stop, self.log)
