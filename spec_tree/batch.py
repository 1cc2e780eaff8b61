"""The kernels that take a whole batch: draft, and move on.

They run without the interpreter's lock. ``draft`` writes only into the rows of
``LiveTurns`` that it is asked for; ``move_on`` also writes into the log and the
weights, so only one thread may call it at a time.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from turntree.spec_tree.candidates import find_places
from turntree.spec_tree.growth import Scratch, grow
from turntree.spec_tree.indexing import claim, index_run
from turntree.spec_tree.layout import (
    BACK,
    END,
    GRANULE,
    JUMP,
    MATCH,
    START,
    TAIL,
    ContextLog,
    LiveTurns,
    TokenLog,
    TurnKeys,
    Weights,
)
from turntree.spec_tree.learning import accepted, learn_nodes, learn_places

LONGEST_PIECE = 128
"""Positions of the longest piece of the log that a live turn takes at once, a multiple of ``GRANULE``."""


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def draft(
    slots: NDArray[np.int64],
    room: NDArray[np.int64],
    budget: int,
    floor: float,
    chain: bool,
    ends: NDArray[np.int32],
    live: LiveTurns,
    log: TokenLog,
    turns: TurnKeys,
    contexts: ContextLog,
    weights: Weights,
    work: Scratch,
    tokens: NDArray[np.int32],
    parents: NDArray[np.int32],
    depths: NDArray[np.int32],
    paths: NDArray[np.float32],
    counts: NDArray[np.int64],
) -> None:
    """Draft for each of ``slots``; row ``b`` of the outputs, of shape (rows, budget), holds ``counts[b]`` nodes."""
    for b in range(len(slots)):
        s = slots[b]
        last = live.last[s]
        token = live.tail[s, last]
        ended = room[b] < 1
        for end in ends:
            ended = ended or token == end
        live.place_count[s] = 0
        live.node_count[s] = 0
        counts[b] = 0
        if ended:
            continue
        live.place_count[s] = find_places(
            live.keys[s],
            live.tail[s],
            last,
            live.context[s],
            live.anchors[s],
            live.ages[s],
            live.anchor_count[s],
            log,
            turns,
            contexts,
            live.places[s],
            live.matches[s],
            live.kinds[s],
        )
        counts[b] = grow(
            live.place_count[s],
            live.places[s],
            live.matches[s],
            live.kinds[s],
            token,
            log,
            contexts,
            live.context[s, 1],
            live.keys[s, 3],
            weights,
            ends,
            chain,
            budget,
            room[b],
            floor,
            live.node_token[s],
            live.node_parent[s],
            live.node_order[s],
            live.node_votes[s],
            live.node_probability[s],
            live.node_hashes[s],
            live.node_count[s : s + 1],
            work,
            tokens[b],
            parents[b],
            depths[b],
            paths[b],
        )


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def move_on(
    slots: NDArray[np.int64],
    said: NDArray[np.int32],
    offsets: NDArray[np.int64],
    live: LiveTurns,
    log: TokenLog,
    contexts: ContextLog,
    weights: Weights,
    head: NDArray[np.int64],
) -> int:
    """Append ``said[offsets[b]:offsets[b + 1]]`` to each turn and learn from it; returns the accepted tokens.

    The log from ``head[0]`` on must be free for what is said and a piece more for each row.
    """
    total = 0
    for b in range(len(slots)):
        s = slots[b]
        new = said[offsets[b] : offsets[b + 1]]
        if len(new) == 0:
            continue
        total += accepted(
            new, live.node_count[s], live.node_token[s], live.node_parent[s], live.node_order[s], live.drafted[s]
        )
        live.anchor_count[s] = learn_places(
            new,
            live.place_count[s],
            live.places[s],
            live.matches[s],
            live.kinds[s],
            live.context[s, 1],
            live.anchors[s],
            live.ages[s],
            live.anchor_count[s],
            live.keys[s, 3],
            live.tail[s, live.last[s]],
            log,
            contexts,
            weights,
        )
        learn_nodes(
            new,
            live.node_count[s],
            live.node_token[s],
            live.node_parent[s],
            live.node_votes[s],
            live.node_probability[s],
            live.node_hashes[s],
            weights,
        )
        live.place_count[s], live.node_count[s], live.drafted[s] = 0, 0, 0
        _remember(s, new, live)
        live.length[s] += len(new)
        if live.turn[s] > 0:
            _append(s, new, live, log, head)
    return total


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _remember(s: int, new: NDArray[np.int32], live: LiveTurns) -> None:
    """Add ``new`` to the turn's tail, whose older part goes when it is full."""
    tail, last = live.tail[s], live.last[s]
    for token in new:
        if last + 1 == TAIL:
            for i in range(MATCH):
                tail[i] = tail[TAIL - MATCH + i]
            last = MATCH - 1
        last += 1
        tail[last] = token
    live.last[s] = last


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _append(s: int, new: NDArray[np.int32], live: LiveTurns, log: TokenLog, head: NDArray[np.int64]) -> None:
    """Write ``new`` behind the turn in the log, into a new piece where the old one is full, and index it."""
    exact, task, env = live.keys[s, 0], live.keys[s, 2], live.keys[s, 3]
    at, limit, done = live.position[s] + 1, live.limit[s], 0
    while done < len(new):
        if at == limit - 1:
            start = head[0]
            size = min(2 * GRANULE + live.last[s] // 2 + len(new) - done, LONGEST_PIECE) // GRANULE * GRANULE
            head[0] = start + size
            claim(start, start + size, live.turn[s], log)
            log.tokens[start], log.exact1[start] = BACK, at - 1
            log.tokens[start + 1] = END
            log.exact1[at] = start
            log.tokens[at] = JUMP
            at, limit = start + 1, start + size
        count = min(len(new) - done, limit - 1 - at)
        log.tokens[at + count] = END
        for i in range(count - 1, -1, -1):
            log.tokens[at + i] = new[done + i]
        index_run(at, at + count, exact, task, env, log)
        at += count
        done += count
    live.position[s], live.limit[s] = at - 1, limit


