"""Finished turns without an index, packed: 2 to 4 bytes a token."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def pack(tokens: NDArray[np.int32]) -> bytes:
    """``tokens`` packed with as few bytes each as the greatest of them needs; the first byte is that width."""
    width = 2 if not len(tokens) or tokens.max() < 1 << 16 else 3 if tokens.max() < 1 << 24 else 4
    return bytes([width]) + tokens.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :width].tobytes()


def unpack(packed: bytes) -> NDArray[np.int32]:
    """The tokens that were given to ``pack``."""
    width = packed[0]
    wide = np.zeros(((len(packed) - 1) // width, 4), np.uint8)
    wide[:, :width] = np.frombuffer(packed, np.uint8, offset=1).reshape(-1, width)
    return wide.view("<i4").ravel().astype(np.int32)


def packed_tokens(packed: bytes) -> int:
    """Number of packed tokens."""
    return (len(packed) - 1) // packed[0]


class ColdTurns:
    """Packed turns by exact state, the least recently touched states dropped first."""

    def __init__(self, max_tokens: int) -> None:
        """Keep at most ``max_tokens``."""
        self._max_tokens = max_tokens
        self._states: OrderedDict[int, tuple[NDArray[np.uint64], deque[bytes]]] = OrderedDict()
        self.tokens = 0
        """Tokens held."""
        self.bytes = 0
        """Memory of the packed tokens, in bytes."""
        self.dropped = 0
        """Turns dropped for lack of room."""
        self.dropped_states = 0
        """States that thereby lost their last turn."""

    def __contains__(self, state: int) -> bool:
        return state in self._states

    def __len__(self) -> int:
        return sum(len(turns) for _, turns in self._states.values())

    def add(self, state: int, keys: NDArray[np.uint64], tokens: NDArray[np.int32]) -> None:
        """Keep a turn of ``state`` (its exact key; ``keys`` is its backoff_states), behind the older ones."""
        self.add_packed(state, keys, pack(tokens))

    def add_packed(self, state: int, keys: NDArray[np.uint64], packed: bytes) -> None:
        """As ``add``, for tokens already packed by ``pack``."""
        self._states.setdefault(state, (keys, deque()))[1].append(packed)
        self._states.move_to_end(state)
        self.tokens += packed_tokens(packed)
        self.bytes += len(packed)
        while self.tokens > self._max_tokens:
            oldest = next(iter(self._states))
            self.drop_oldest(oldest)
            self.dropped += 1
            self.dropped_states += oldest not in self._states

    def take(self, state: int) -> list[NDArray[np.int32]]:
        """Remove and return the turns of ``state``, oldest first."""
        turns = self.look(state)
        while state in self._states:
            self.drop_oldest(state)
        return turns

    def look(self, state: int) -> list[NDArray[np.int32]]:
        """The turns of ``state``, oldest first."""
        return [unpack(packed) for packed in self._states[state][1]] if state in self._states else []

    def count(self, state: int) -> int:
        """Number of turns of ``state``."""
        return len(self._states[state][1]) if state in self._states else 0

    def drop_oldest(self, state: int) -> None:
        """Drop the oldest turn of ``state``."""
        turns = self._states[state][1]
        packed = turns.popleft()
        self.tokens -= packed_tokens(packed)
        self.bytes -= len(packed)
        if not turns:
            del self._states[state]

    def packed(self) -> Iterator[tuple[int, NDArray[np.uint64], bytes]]:
        """State, backoff_states and packed tokens of each turn, least recently touched states and oldest turns first."""
        for state, (keys, turns) in self._states.items():
            for packed in turns:
                yield state, keys, packed

    def states(self) -> Iterator[int]:
        """The states that have turns here, least recently touched first."""
        return iter(self._states)
