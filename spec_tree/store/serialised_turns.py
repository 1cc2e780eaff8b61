"""Conversion of a forest's finished turns to flat arrays, and back.

The arrays hold the turns, the keys of their states, and the orders that decide which turn is dropped first: within a
state, in the log, and among cold turns. The index is rebuilt while the turns are written into a log. If not all turns
fit, the oldest turns of the log and the oldest cold turns are dropped, as in a full forest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from turntree.spec_tree.kernels.layout import LiveTurns
from turntree.spec_tree.store.cold import unpack
from turntree.spec_tree.store.live_table import known_tokens
from turntree.spec_tree.store.retention import RetentionPolicy, _State
from turntree.spec_tree.store.turn_store import LogEntry


class SerialisedTurns(NamedTuple):
    """Finished turns; hot turns are in the log, cold turns have no index."""

    keys: NDArray[np.uint64]  #: back-off keys of each state, shape (states, 4)
    visited: NDArray[np.int64]  #: time when a turn last began in a state, 0 if all its turns are cold, shape (states,)
    clock: NDArray[np.int64]  #: the current time, shape (1,)
    #: turns dropped for quota, turns dropped for lack of memory, states dropped for lack of memory, shape (3,)
    evicted: NDArray[np.int64]
    hot_state: NDArray[np.int32]  #: state of each hot turn, ascending; within a state oldest first, shape (hot,)
    hot_rank: NDArray[np.int64]  #: position of the turn in the log's order, oldest first, a permutation, shape (hot,)
    hot_seen: NDArray[np.int64]  #: time when each hot turn was written, shape (hot,)
    hot_length: NDArray[np.int64]  #: number of tokens of each hot turn, shape (hot,)
    hot_tokens: NDArray[np.int32] | NDArray[np.uint16]  #: token ids, one turn after another; uint16 if all fit
    #: state of each cold turn, least recently used states first; within a state oldest first, shape (cold,)
    cold_state: NDArray[np.int32]
    cold_size: NDArray[np.int64]  #: number of bytes of each cold turn, shape (cold,)
    cold_packed: NDArray[np.uint8]  #: packed token ids of the cold turns, one turn after another


def collect(rollouts: RetentionPolicy) -> SerialisedTurns:
    """Return a copy of all finished turns."""
    states = [state for state in rollouts.by_state.values() if state.turns]
    keys = [state.keys for state in states]
    index = {state.exact: i for i, state in enumerate(states)}
    cold_state, packed = [], []
    for exact, backoff_states, turn in rollouts.cold.packed():
        state_index = index.setdefault(exact, len(keys))
        if state_index == len(keys):
            keys.append(backoff_states)
        cold_state.append(state_index)
        packed.append(turn)
    visited = np.zeros(len(keys), np.int64)
    visited[: len(states)] = [state.visited for state in states]
    turns = [turn for state in states for turn in state.turns]
    starts = np.array([turn.start for turn in turns], np.int64)
    # The oldest turn comes right after the head, so turns sorted by distance after the head are sorted by age.
    distance = (starts - rollouts.store.head[0]) % (rollouts.store.capacity + 1)
    rank = np.empty(len(turns), np.int64)
    rank[np.argsort(distance)] = np.arange(len(turns))
    sampled = np.concatenate([np.zeros(0, np.int32), *map(rollouts.store.read, turns)])
    return SerialisedTurns(
        keys=np.array(keys, np.uint64).reshape(-1, 4),
        visited=visited,
        clock=np.array([rollouts._clock], np.int64),
        evicted=np.array([rollouts._over_quota, rollouts.cold.dropped, rollouts.cold.dropped_states], np.int64),
        hot_state=np.repeat(np.arange(len(states), dtype=np.int32), [len(state.turns) for state in states]),
        hot_rank=rank,
        hot_seen=np.array([turn.seen for turn in turns], np.int64),
        hot_length=np.array([turn.tokens for turn in turns], np.int64),
        hot_tokens=sampled.astype(np.uint16) if sampled.max(initial=0) < 1 << 16 else sampled,
        cold_state=np.array(cold_state, np.int32),
        cold_size=np.array([len(turn) for turn in packed], np.int64),
        cold_packed=np.frombuffer(b"".join(packed), np.uint8),
    )


def restore(held: SerialisedTurns, rollouts: RetentionPolicy, live: LiveTurns) -> None:
    """Write the newest turns that fit into empty ``rollouts``; ``live`` has no live turn."""
    states = [_State(int(keys[0]), keys) for keys in held.keys]
    rollouts._over_quota, rollouts.cold.dropped, rollouts.cold.dropped_states = held.evicted.tolist()
    turns_of = np.bincount(np.concatenate([held.cold_state, held.hot_state]), minlength=len(states))
    # A smaller quota drops the oldest turns of a state: cold turns first, then hot turns.
    excess = np.maximum(turns_of - rollouts.quota, 0).tolist()
    rollouts._over_quota += sum(excess)
    ends = np.cumsum(held.cold_size).tolist()
    packed = held.cold_packed.tobytes()
    for state_index, (start, stop) in zip(held.cold_state.tolist(), pairwise([0, *ends]), strict=True):
        if excess[state_index]:
            excess[state_index] -= 1
        else:
            rollouts.cold.add_packed(states[state_index].exact, states[state_index].keys, packed[start:stop])
    within_quota = np.ones(len(held.hot_state), bool)
    for turn, state_index in enumerate(held.hot_state.tolist()):
        if excess[state_index]:
            excess[state_index] -= 1
            within_quota[turn] = False
    stops = np.cumsum(held.hot_length).tolist()
    starts = [0, *stops]
    written: dict[int, LogEntry] = {}
    # Write in the saved log's order, which keeps the order of eviction; then restore the order within each state.
    for turn in np.argsort(held.hot_rank).tolist():
        if within_quota[turn]:
            state = states[held.hot_state[turn]]
            sampled = held.hot_tokens[starts[turn] : stops[turn]].astype(np.int32)
            rollouts._write(state, sampled, live)
            if len(sampled) <= rollouts.store.longest:
                written[turn] = state.turns[-1]
    for state in states:
        state.turns = deque()
    in_log = {id(turn) for turn in rollouts.store.turns()}
    for turn in sorted(written):
        stored = written[turn]
        stored.seen = int(held.hot_seen[turn])
        if id(stored) in in_log:
            states[held.hot_state[turn]].turns.append(stored)
    for state, visited in zip(states, held.visited.tolist(), strict=True):
        state.visited = visited
    rollouts._clock = int(held.clock[0])


def all_turns(held: SerialisedTurns) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int32]]]:
    """Yield the turns, oldest first, each with its back-off keys."""
    packed, ends = held.cold_packed.tobytes(), np.cumsum(held.cold_size).tolist()
    for state_index, (start, stop) in zip(held.cold_state.tolist(), pairwise([0, *ends]), strict=True):
        yield held.keys[state_index], unpack(packed[start:stop])
    stops = np.cumsum(held.hot_length)
    for turn in np.argsort(held.hot_rank).tolist():
        sampled = held.hot_tokens[stops[turn] - held.hot_length[turn] : stops[turn]]
        yield held.keys[held.hot_state[turn]], sampled.astype(np.int32)


def check(held: SerialisedTurns) -> None:
    """Raise ``ValueError`` unless ``restore`` can rely on the arrays, which have the dtypes of ``KINDS``."""
    states, hot, cold = len(held.keys), len(held.hot_state), len(held.cold_state)
    distinct = len(np.unique(held.keys[:, :1])) == states
    _require(
        {
            "keys": held.keys.shape[1] == 4 and held.keys.min(initial=1) > 0 and distinct,
            "visited": len(held.visited) == states,
            "clock": len(held.clock) == 1,
            "evicted": len(held.evicted) == 3 and _within(held.evicted, 0, MOST_COUNT),
            "hot_state": _within(held.hot_state, 0, states - 1),
            "order of hot_state": bool((held.hot_state[1:] >= held.hot_state[:-1]).all()),
            "hot_rank": np.array_equal(np.sort(held.hot_rank), np.arange(hot)),
            "hot_seen": len(held.hot_seen) == hot,
            "hot_length": len(held.hot_length) == hot and _sums_to(held.hot_length, 1, len(held.hot_tokens)),
            "hot_tokens": int(held.hot_tokens.min(initial=0)) >= 0,
            "cold_state": _within(held.cold_state, 0, states - 1),
            "cold_size": len(held.cold_size) == cold and _sums_to(held.cold_size, 3, len(held.cold_packed)),
        }
    )
    clock = int(held.clock[0])
    ends = np.cumsum(held.cold_size)
    widths = held.cold_packed[ends - held.cold_size].astype(np.int64)
    packed = bool(np.isin(widths, (2, 3, 4)).all()) and not ((held.cold_size - 1) % np.maximum(widths, 1)).any()
    wide = np.flatnonzero(widths == 4) if packed else ()
    _require(
        {
            "clock": 0 <= clock <= MOST_COUNT,
            "visited": _within(held.visited, 0, clock),
            "hot_seen": _within(held.hot_seen, 0, clock),
            "cold_packed": packed
            # The highest byte of each token is below 128, so no id is negative.
            and all(held.cold_packed[ends[i] - held.cold_size[i] + 4 : ends[i] : 4].max() < 128 for i in wide),
        }
    )


def check_tokens(held: SerialisedTurns, vocabulary: int) -> None:
    """Raise ``ValueError`` unless all tokens of checked arrays are below ``vocabulary``; 0 accepts any token."""
    if not vocabulary:
        return
    known_tokens(held.hot_tokens.astype(np.int32, copy=False), vocabulary)
    packed = held.cold_packed.tobytes()
    for begin, end in pairwise([0, *np.cumsum(held.cold_size).tolist()]):
        known_tokens(unpack(packed[begin:end]), vocabulary)


def _require(rules: dict[str, bool | np.bool_]) -> None:
    for name, holds in rules.items():
        if not holds:
            raise ValueError(f"{name} does not match the other arrays")


def _within(array: NDArray[np.int64] | NDArray[np.int32], least: int, most: int) -> bool:
    return not len(array) or (int(array.min()) >= least and int(array.max()) <= most)


def _sums_to(lengths: NDArray[np.int64], least: int, whole: int) -> bool:
    # Check each length against the whole first, so that the sum of lengths cannot overflow.
    return _within(lengths, least, whole) and int(lengths.sum()) == whole


#: dtype and number of dimensions of each array of ``SerialisedTurns``; ``hot_tokens`` may be narrower
KINDS: tuple[tuple[DTypeLike, int], ...] = (
    (np.uint64, 2),
    (np.int64, 1),
    (np.int64, 1),
    (np.int64, 1),
    (np.int32, 1),
    (np.int64, 1),
    (np.int64, 1),
    (np.int64, 1),
    (np.int32, 1),
    (np.int32, 1),
    (np.int64, 1),
    (np.uint8, 1),
)
MOST_COUNT = 1 << 62  #: greatest saved clock or counter, so that later additions fit into 64 bits
