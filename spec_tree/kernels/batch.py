"""Kernels for a whole batch of turns: ``begin``, ``draft`` and ``advance``.

All three run without the GIL. ``begin`` and ``draft`` write only the rows of ``LiveTurns`` that they are given, so
several threads may call them at the same time. ``advance`` also writes the token log (the buffer of stored turns)
and the weights, so only one thread at a time may call it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.candidates import find_candidates
from turntree.spec_tree.kernels.compiled import int64, kernel, part
from turntree.spec_tree.kernels.growth import ends_turn, grow
from turntree.spec_tree.kernels.indexing import claim, index_run
from turntree.spec_tree.kernels.layout import (
    BACK,
    END,
    ENV_KEY,
    EXACT1,
    EXACT_KEY,
    GRANULE,
    JUMP,
    MATCH,
    START,
    TAIL,
    TASK_KEY,
    DraftLimits,
    DraftNodes,
    DraftSources,
    TokenLog,
    Weights,
)
from turntree.spec_tree.kernels.learning import accepted, learn_candidates, learn_nodes
from turntree.spec_tree.kernels.prefetch import PREFETCHED_ROWS, prefetch_rows

#: maximum positions of the log that a live turn reserves at once (a piece); a multiple of ``GRANULE``
LONGEST_PIECE = 128


@kernel
def begin(slots: NDArray[np.int64], keys: NDArray[np.uint64], live: NDArray[np.void]) -> None:
    """Initialise the rows ``slots`` of ``live`` (``LIVE_TURN``) for turns with ``keys``, shape (rows, 4)."""
    for b in range(len(slots)):
        turn = live[slots[b]]
        for j in range(4):
            turn.keys[j] = keys[b, j]
        turn.tail[0] = START
        turn.last, turn.length, turn.turn, turn.context[0], turn.context[1] = 0, 0, 0, 0, 0
        turn.anchor_count, turn.candidate_count, turn.node_count, turn.drafted = 0, 0, 0, 0


@kernel
def draft(
    slots: NDArray[np.int64],
    max_depths: NDArray[np.int64],
    limits: DraftLimits,
    live: NDArray[np.void],
    sources: DraftSources,
    weights: Weights,
    work: NDArray[np.void],
    out: DraftNodes,
    start: int,
    counts: NDArray[np.int64],
) -> int:
    """Draft for the rows ``slots`` of ``live`` and return the number of nodes of all rows.

    ``max_depths`` is the maximum depth of each row's tree. ``out`` is filled from ``start`` on, row by row, and needs
    space for ``rows * limits.budget`` nodes. ``counts`` is filled with the number of nodes of each row.
    """
    own = work[0]
    total: int = int64(0)
    for b in range(len(slots)):
        if b % PREFETCHED_ROWS == 0:
            prefetch_rows(slots, b, live, sources.log, sources.turns, own)
        turn = live[slots[b]]
        turn.candidate_count, turn.node_count, counts[b] = 0, 0, 0
        if max_depths[b] >= 1 and not ends_turn(turn.tail[turn.last], limits.ends):
            find_candidates(turn, b % PREFETCHED_ROWS, sources, own)
            at = start + total
            own_nodes = DraftNodes(out.tokens[at:], out.parents[at:], out.depths[at:], out.paths[at:])
            counts[b] = grow(turn, max_depths[b], limits, sources, weights[0], own, own_nodes)
        turn.drafted = counts[b]
        total += counts[b]
    return total


@kernel
def advance(
    slots: NDArray[np.int64],
    sampled: NDArray[np.int32],
    offsets: NDArray[np.int64],
    live: NDArray[np.void],
    sources: DraftSources,
    weights: Weights,
    head: NDArray[np.int64],
) -> int:
    """Append ``sampled[offsets[b]:offsets[b + 1]]`` to turn b, learn, and return the accepted draft tokens.

    From ``head[0]`` on, the log must have free positions for these tokens and one more piece per row.
    """
    total = 0
    for b in range(len(slots)):
        turn = live[slots[b]]
        new = sampled[offsets[b] : offsets[b + 1]]
        if len(new) == 0:
            continue
        total += extend(turn, new, sources, weights[0], head)
    return total


@part
def extend(turn: Any, new: NDArray[np.int32], sources: DraftSources, weights: Any, head: NDArray[np.int64]) -> int:
    total = accepted(turn, new)
    learn_candidates(turn, new, sources.log, sources.contexts, weights)
    learn_nodes(turn, new, weights)
    turn.candidate_count, turn.node_count, turn.drafted = 0, 0, 0
    _remember(turn, new)
    if turn.turn > 0:
        _append(turn, new, sources.log, head)
    return total


@part
def _remember(turn: Any, new: NDArray[np.int32]) -> None:
    # drop the older part of a full tail, but keep the last MATCH tokens, which ``agreement`` compares
    tail, last = turn.tail, turn.last
    for token in new:
        if last + 1 == TAIL:
            for i in range(MATCH):
                tail[i] = tail[TAIL - MATCH + i]
            last = MATCH - 1
        last += 1
        tail[last] = token
    turn.last = last
    turn.length += len(new)


@part
def _append(turn: Any, new: NDArray[np.int32], log: TokenLog, head: NDArray[np.int64]) -> None:
    exact, task, env = turn.keys[EXACT_KEY], turn.keys[TASK_KEY], turn.keys[ENV_KEY]
    at, limit, done = turn.position + 1, turn.limit, 0
    while done < len(new):
        if at == limit - 1:
            # Pieces grow with the turn: a short turn wastes little space, and a long turn has few jumps.
            start = head[0]
            size = min(2 * GRANULE + turn.last // 2 + len(new) - done, LONGEST_PIECE) // GRANULE * GRANULE
            head[0] = start + size
            claim(start, start + size, np.int64(turn.turn), log)
            log.tokens[start], log.links[EXACT1, start] = BACK, at - 1
            log.tokens[start + 1] = END
            log.links[EXACT1, at] = start
            log.tokens[at] = JUMP  # last: a reader that sees the mark finds the new piece complete
            at, limit = start + 1, start + size
        count = min(len(new) - done, limit - 1 - at)
        # Write END first, then the tokens backwards, so that a concurrent reader never runs past the end.
        log.tokens[at + count] = END
        for i in range(count - 1, -1, -1):
            log.tokens[at + i] = new[done + i]
        index_run(at, at + count, exact, task, env, log)
        at += count
        done += count
    turn.position, turn.limit = at - 1, limit
