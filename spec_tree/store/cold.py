from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def pack(tokens: NDArray[np.int32]) -> bytes:
    """Pack tokens with as many bytes each as the greatest token needs; the first byte holds that number."""
    # Most vocabularies need 3 bytes; 4 hold any int32.
    width = 2 if not len(tokens) or tokens.max() < 1 << 16 else 3 if tokens.max() < 1 << 24 else 4
    return bytes([width]) + tokens.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :width].tobytes()


def unpack(packed: bytes) -> NDArray[np.int32]:
    """Return the tokens that ``pack`` packed."""
    width = packed[0]
    wide = np.zeros(((len(packed) - 1) // width, 4), np.uint8)
    wide[:, :width] = np.frombuffer(packed, np.uint8, offset=1).reshape(-1, width)
    return wide.view("<i4").ravel().astype(np.int32)


def packed_tokens(packed: bytes) -> int:
    return (len(packed) - 1) // packed[0]


class ColdTurns:
    """Cold turns: packed, without an index, by exact state; least recently used states are dropped first."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._states: OrderedDict[int, tuple[NDArray[np.uint64], deque[bytes]]] = OrderedDict()
        self.tokens = 0  #: tokens held
        self.bytes = 0  #: memory of the packed tokens, bytes
        self.dropped = 0  #: turns dropped because the store was full
        self.dropped_states = 0  #: states whose last turn was dropped because the store was full

    def __contains__(self, state: int) -> bool:
        return state in self._states

    def __len__(self) -> int:
        return sum(len(turns) for _, turns in self._states.values())

    def add(self, state: int, keys: NDArray[np.uint64], tokens: NDArray[np.int32]) -> None:
        self.add_packed(state, keys, pack(tokens))

    def add_packed(self, state: int, keys: NDArray[np.uint64], packed: bytes) -> None:
        """Add a packed turn after the older turns of ``state``; ``keys`` are its back-off keys."""
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
        """Return the turns of ``state``, oldest first."""
        return [unpack(packed) for packed in self._states[state][1]] if state in self._states else []

    def count(self, state: int) -> int:
        return len(self._states[state][1]) if state in self._states else 0

    def drop_oldest(self, state: int) -> None:
        turns = self._states[state][1]
        packed = turns.popleft()
        self.tokens -= packed_tokens(packed)
        self.bytes -= len(packed)
        if not turns:
            del self._states[state]

    def packed(self) -> Iterator[tuple[int, NDArray[np.uint64], bytes]]:
        """Yield state, back-off keys and packed tokens of each turn, in the order of eviction."""
        for state, (keys, turns) in self._states.items():
            for packed in turns:
                yield state, keys, packed

    def states(self) -> Iterator[int]:
        return iter(self._states)
