"""The kernels that take a whole batch: begin, draft, and move on.

They run without the interpreter's lock. ``begin`` and ``draft`` write only into the rows of
``LiveTurns`` that they are asked for; ``move_on`` also writes into the log and the
weights, so only one thread may call it at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.candidates import find_places
from turntree.spec_tree.kernels.compiled import int64, kernel, part
from turntree.spec_tree.kernels.growth import grow, is_end
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
from turntree.spec_tree.kernels.learning import accepted, learn_nodes, learn_places
from turntree.spec_tree.kernels.look_ahead import TOGETHER, look_ahead

LONGEST_PIECE = 128
"""Positions of the longest piece of the log that a live turn takes at once, a multiple of ``GRANULE``."""


@kernel
def begin(slots: NDArray[np.int64], keys: NDArray[np.uint64], live: NDArray[np.void]) -> None:
    """Let turns of these ``keys``, shape (rows, 4), begin in ``slots`` of ``live``, of type ``LIVE_TURN``."""
    for b in range(len(slots)):
        turn = live[slots[b]]
        for j in range(4):
            turn.keys[j] = keys[b, j]
        turn.tail[0] = START
        turn.last, turn.length, turn.turn, turn.context[0], turn.context[1] = 0, 0, 0, 0, 0
        turn.anchor_count, turn.place_count, turn.node_count, turn.drafted = 0, 0, 0, 0


@kernel
def draft(
    slots: NDArray[np.int64],
    room: NDArray[np.int64],
    limits: DraftLimits,
    live: NDArray[np.void],
    sources: DraftSources,
    weights: Weights,
    work: NDArray[np.void],
    out: DraftNodes,
    start: int,
    counts: NDArray[np.int64],
) -> int:
    """Draft for some live turns; the nodes of all are counted as handed out.

    Args:
        slots: Rows of ``live``, shape (rows,).
        room: Depth at most of each row, shape (rows,).
        live: The live turns, of type ``LIVE_TURN``.
        work: Room to work in, a ``SCRATCH``, shape (1,).
        out: One row's nodes after the other's, filled; room for ``rows * limits.budget`` from ``start`` on.
        counts: Nodes of each row, filled, shape (rows,).

    Returns:
        The nodes of all rows.
    """
    own = work[0]
    total: int = int64(0)
    for b in range(len(slots)):
        if b % TOGETHER == 0:
            look_ahead(slots, b, live, sources.log, sources.turns, own)
        turn = live[slots[b]]
        turn.place_count, turn.node_count, counts[b] = 0, 0, 0
        if room[b] >= 1 and not is_end(turn.tail[turn.last], limits.ends):
            find_places(turn, b % TOGETHER, sources, own)
            at = start + total
            own_nodes = DraftNodes(out.tokens[at:], out.parents[at:], out.depths[at:], out.paths[at:])
            counts[b] = grow(turn, room[b], limits, sources, weights[0], own, own_nodes)
        turn.drafted = counts[b]
        total += counts[b]
    return total


@kernel
def move_on(
    slots: NDArray[np.int64],
    sampled: NDArray[np.int32],
    offsets: NDArray[np.int64],
    live: NDArray[np.void],
    sources: DraftSources,
    weights: Weights,
    head: NDArray[np.int64],
) -> int:
    """Append ``sampled[offsets[b]:offsets[b + 1]]`` to each turn and learn from it; returns the accepted tokens.

    The log from ``head[0]`` on must be free for these tokens and a piece more for each row.
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
    """Append ``new``, which is not empty, to one turn and learn from it, as ``move_on``."""
    total = accepted(turn, new)
    learn_places(turn, new, sources.log, sources.contexts, weights)
    learn_nodes(turn, new, weights)
    turn.place_count, turn.node_count, turn.drafted = 0, 0, 0
    _remember(turn, new)
    if turn.turn > 0:
        _append(turn, new, sources.log, head)
    return total


@part
def _remember(turn: Any, new: NDArray[np.int32]) -> None:
    """Add ``new`` to the turn's tail, whose older part goes when it is full."""
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
    """Write ``new`` behind the turn in the log, into a new piece where the old one is full, and index it."""
    exact, task, env = turn.keys[EXACT_KEY], turn.keys[TASK_KEY], turn.keys[ENV_KEY]
    at, limit, done = turn.position + 1, turn.limit, 0
    while done < len(new):
        if at == limit - 1:
            start = head[0]
            size = min(2 * GRANULE + turn.last // 2 + len(new) - done, LONGEST_PIECE) // GRANULE * GRANULE
            head[0] = start + size
            claim(start, start + size, np.int64(turn.turn), log)
            log.tokens[start], log.links[EXACT1, start] = BACK, at - 1
            log.tokens[start + 1] = END
            log.links[EXACT1, at] = start
            log.tokens[at] = JUMP  # last of all: what it leads to stands when a reader sees it
            at, limit = start + 1, start + size
        count = min(len(new) - done, limit - 1 - at)
        # the end first, then the tokens from the last on: a reader never runs past what is written
        log.tokens[at + count] = END
        for i in range(count - 1, -1, -1):
            log.tokens[at + i] = new[done + i]
        index_run(at, at + count, exact, task, env, log)
        at += count
        done += count
    turn.position, turn.limit = at - 1, limit
