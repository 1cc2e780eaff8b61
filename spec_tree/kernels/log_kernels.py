"""Write, read, index and drop single turns of the token log (the buffer of stored turns)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.compiled import int64, kernel, part
from turntree.spec_tree.kernels.indexing import claim, follow_row, index_run
from turntree.spec_tree.kernels.layout import (
    BACK,
    END,
    ENV_KEY,
    EXACT1,
    EXACT_KEY,
    FOLLOWERS,
    GRANULE,
    JUMP,
    START,
    TASK_KEY,
    TOOLS_KEY,
    TokenLog,
    TurnKeys,
)

OPENED = 2 * GRANULE  #: positions of a live turn's first piece


@part
def _write_turn(
    start: int, stop: int, sampled: NDArray[np.int32], turn: int, keys: NDArray[np.uint64], log: TokenLog
) -> None:
    claim(start, stop, turn, log)
    # Write END first, then the tokens backwards, then START, so that no concurrent reader runs past the turn.
    log.tokens[start + len(sampled) + 1] = END
    for i in range(len(sampled) - 1, -1, -1):
        log.tokens[start + 1 + i] = sampled[i]
    log.tokens[start] = START
    # The start of a turn is indexed by the tool history, its tokens by the task.
    index_run(start, start + 1, keys[EXACT_KEY], keys[TOOLS_KEY], keys[ENV_KEY], log)
    index_run(start + 1, start + 1 + len(sampled), keys[EXACT_KEY], keys[TASK_KEY], keys[ENV_KEY], log)


@kernel
def write_turns(
    bounds: NDArray[np.int64],
    sampled: NDArray[np.int32],
    spans: NDArray[np.int64],
    slots: NDArray[np.int64],
    keys: NDArray[np.uint64],
    log: TokenLog,
    turns: TurnKeys,
) -> None:
    """Write ``sampled[spans[i, 0]:spans[i, 1]]`` as a turn into the free piece ``bounds[i]:bounds[i + 1]``.

    ``keys``, shape (turns, 4), become the keys of ``slots``. Pieces begin and end at a multiple of ``GRANULE`` and
    have at least two positions more than their turn has tokens.
    """
    for i in range(len(slots)):
        slot, key = slots[i], keys[i]
        for j in range(4):
            turns[slot, j] = key[j]
        _write_turn(bounds[i], bounds[i + 1], sampled[spans[i, 0] : spans[i, 1]], slot, key, log)


@kernel
def open_turns(
    rows: NDArray[np.int64],
    slots: NDArray[np.int64],
    nothing: NDArray[np.int32],
    live: NDArray[np.void],
    head: NDArray[np.int64],
    log: TokenLog,
    turns: TurnKeys,
) -> None:
    """Store the turns in ``rows`` of ``live`` as empty turns from ``head[0]`` on; their keys must be set.

    ``nothing`` is an empty array of tokens.
    """
    for i in range(len(rows)):
        turn, slot, start = live[rows[i]], slots[i], head[0]
        for j in range(4):
            turns[slot, j] = turn.keys[j]
        head[0] = start + OPENED
        _write_turn(start, start + OPENED, nothing, slot, turns[slot], log)
        turn.turn, turn.position, turn.limit = slot, start, start + OPENED


@kernel
def read_turn(start: int, out: NDArray[np.int32], log: TokenLog) -> int:
    """Copy the turn that begins at ``start`` into ``out``, as far as it fits; return the number of tokens."""
    at, count = start + 1, 0
    while count < len(out):
        token = log.tokens[at]
        if token == JUMP:
            at = int64(log.links[EXACT1, at]) + 1
        elif token < 0:
            break
        else:
            out[count] = token
            count += 1
            at += 1
    return count


@kernel
def index_log(head: int, log: TokenLog, turns: TurnKeys) -> None:
    for granule in range(1, head // GRANULE):
        slot, begin = log.owner[granule], granule * GRANULE
        if slot == 0 or (log.tokens[begin] != START and log.tokens[begin] != BACK):
            continue
        keys = turns[slot]
        if log.tokens[begin] == START:
            index_run(begin, begin + 1, keys[EXACT_KEY], keys[TOOLS_KEY], keys[ENV_KEY], log)
        stop = begin + 1
        while log.tokens[stop] >= 0:
            stop += 1
        index_run(begin + 1, stop, keys[EXACT_KEY], keys[TASK_KEY], keys[ENV_KEY], log)


@kernel
def drop_turns(
    starts: NDArray[np.int64], slots: NDArray[np.int64], kept: NDArray[np.int32], log: TokenLog, turns: TurnKeys
) -> None:
    """Make the turns that begin at ``starts`` unreachable; ``kept``, shape (FOLLOWERS,), is working memory."""
    for i in range(len(slots)):
        slot = slots[i]
        env = turns[slot, ENV_KEY]
        for j in range(4):
            turns[slot, j] = 0
        _forget_followers(starts[i], env, kept, log)
        _disown(starts[i], slot, log)


@part
def _forget_followers(start: int, env: int, kept: NDArray[np.int32], log: TokenLog) -> None:
    # Remove the followers that the turn added, unless newer turns have overwritten them.
    at, before = int64(start), np.int32(START)
    while True:
        at += 1
        token = log.tokens[at]
        if token == JUMP:
            at = int64(log.links[EXACT1, at])
        elif token < 0:
            return
        else:
            _forget_follower(follow_row(env, before), token, kept, log)
            before = token


@part
def _forget_follower(row: int, token: int, kept: NDArray[np.int32], log: TokenLog) -> None:
    # remove the oldest occurrence of the token; the ring is rewritten, oldest first
    count = min(log.followed[row], FOLLOWERS)
    oldest = log.followed[row] % FOLLOWERS if count == FOLLOWERS else 0
    kept[:] = -1
    left = 0
    for i in range(count):
        other = log.followers[row, (oldest + i) % FOLLOWERS]
        if other == token and left == i:
            continue
        kept[left] = other
        left += 1
    if left < count:
        for i in range(FOLLOWERS):
            log.followers[row, i] = kept[i]
        log.followed[row] = left


@part
def _disown(start: int, turn: int, log: TokenLog) -> None:
    piece = int64(start)
    while True:
        stop = piece + 1
        while log.tokens[stop] != END and log.tokens[stop] != JUMP:
            stop += 1
        granule = piece // GRANULE
        while granule <= stop // GRANULE or (granule < len(log.owner) and log.owner[granule] == turn):
            log.owner[granule] = 0
            granule += 1
        if log.tokens[stop] == END:
            return
        piece = int64(log.links[EXACT1, stop])
