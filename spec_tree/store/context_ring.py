from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.indexing import write_contexts
from turntree.spec_tree.kernels.layout import ContextLog, LiveTurns, context_log

_FIRST_CAPACITY = 1 << 14


class ContextRing:
    """Contexts of live turns in a ring buffer; the oldest contexts are dropped when it is full.

    A context is the prompt of a turn, indexed on its own. The ring keeps the last ``window`` tokens of each context,
    and in total at most ``max_tokens``, rounded down to a power of two. Not thread-safe for writers.
    """

    def __init__(self, max_tokens: int, window: int) -> None:
        self._capacity = 1 << (max_tokens.bit_length() - 1)
        self._window = min(window, self._capacity // 2)
        self.log: ContextLog = context_log(min(_FIRST_CAPACITY, self._capacity))
        self._head = 1
        self._held: deque[tuple[int, int, int]] = deque()  #: start, stop and row of ``LiveTurns``, oldest first

    @property
    def bytes(self) -> int:
        return sum(array.nbytes for array in self.log)

    def add(
        self, rows: NDArray[np.int64], tokens: NDArray[np.int32], offsets: NDArray[np.int64], turns: LiveTurns
    ) -> None:
        """Store ``tokens[offsets[i]:offsets[i + 1]]`` as the context of ``rows[i]`` of ``turns``, for each i."""
        turns.context[rows] = 0
        stops = offsets[1:]
        lengths = np.minimum(stops - offsets[:-1], self._window)
        remaining = np.flatnonzero(lengths > 1)  # a context of one token matches nothing
        # Write at most half of the ring at once, so that no context evicts another context of the same call.
        while len(remaining):
            count = int(np.searchsorted(lengths[remaining].cumsum(), self._capacity // 2, "right"))
            batch, remaining = remaining[:count], remaining[count:]
            self._write(rows[batch], tokens, stops[batch] - lengths[batch], lengths[batch], turns)

    def _write(
        self,
        rows: NDArray[np.int64],
        tokens: NDArray[np.int32],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int64],
        turns: LiveTurns,
    ) -> None:
        bounds = self._make_room(int(lengths.sum()), turns) + np.concatenate([[0], lengths.cumsum()])
        write_contexts(tokens, begins, bounds, rows, turns.records, self.log)
        self._head = int(bounds[-1])
        self._held += zip(bounds[:-1].tolist(), bounds[1:].tolist(), rows.tolist(), strict=True)

    def _make_room(self, tokens: int, turns: LiveTurns) -> int:
        # Returns a position with `tokens` free tokens after it.
        # Forget contexts of ended turns first: their row was cleared or reused, so it has another start.
        while self._held and turns.context[self._held[0][2], 0] != self._held[0][0]:
            self._held.popleft()
        if not self._held:
            self._head = 1
        if self._head + tokens > len(self.log.tokens) < self._capacity:
            self._grow(self._head + tokens, turns)
        if self._head + tokens > len(self.log.tokens):
            # Wrap around: contexts between the head and the end are the oldest contexts.
            while self._held and self._held[0][0] >= self._head:
                self._drop_oldest(turns)
            self._head = 1  # position 0 stands for no context
        while self._held and self._head <= self._held[0][0] < self._head + tokens:
            self._drop_oldest(turns)
        return self._head

    def _drop_oldest(self, turns: LiveTurns) -> None:
        start, _, row = self._held.popleft()
        if turns.context[row, 0] == start:
            turns.context[row] = 0

    def _grow(self, needed: int, turns: LiveTurns) -> None:
        # Before the ring has its full size, contexts lie in order and without gaps: copy them to the same positions.
        # Copy with the kernel for new contexts, so that no step waits until another kernel is loaded.
        size = len(self.log.tokens)
        while size < min(needed, self._capacity):
            size *= 2
        old, self.log = self.log, context_log(size)
        bounds = np.array([start for start, _, _ in self._held] + [self._head])
        write_contexts(old.tokens, bounds[:-1], bounds, np.full(len(self._held), -1), turns.records, self.log)
