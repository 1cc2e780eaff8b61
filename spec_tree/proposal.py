"""Drafts of live turns as one batch, under the limits that a caller gives."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree import batch as kernels
from turntree.spec_tree.config import MOST_THREADS
from turntree.spec_tree.draft import DraftBatch
from turntree.spec_tree.growth import AGAIN_VOTERS, scratch
from turntree.spec_tree.layout import ContextLog, LiveTurns, TokenLog, TurnKeys, Weights

MOST_NODES = 128
"""Nodes of one row at most."""


_FEW_ROWS = 64
"""Rows up to which more places are looked up below the roots. It takes half of a draft's time for some thousandths of
the tokens: little beside a step of the model, unless the batch is large."""
_ROWS_OF_A_THREAD = 32
"""Rows that are worth a thread of their own."""


_own = threading.local()


def _work() -> NDArray[np.void]:
    """This thread's room to work in."""
    if not hasattr(_own, "work"):
        _own.work = scratch()
    work: NDArray[np.void] = _own.work
    return work


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="forest-draft")


def propose(
    rows: NDArray[np.int64],
    live: LiveTurns,
    contexts: ContextLog,
    log: TokenLog,
    turns: TurnKeys,
    weights: Weights,
    ends: NDArray[np.int32],
    *,
    max_nodes: int,
    room: Sequence[int],
    min_probability: float,
    chain: bool,
    total_nodes: int | None,
    threads: int = 1,
) -> DraftBatch:
    """Draft for ``rows`` of ``live`` from a log and its keys; the arguments after ``ends`` as in ``SpecForest.draft``.

    Large batches are split among ``threads`` threads; the result does not depend on it.

    Raises:
        ValueError: If ``room`` does not have one entry a row.
    """
    if len(room) != len(rows):
        raise ValueError(f"room needs one entry a row: expected {len(rows)}, got {len(room)}")
    budget = max(0, min(max_nodes, MOST_NODES))
    shape = (len(rows), budget)
    tokens, parents, depths = np.empty(shape, np.int32), np.empty(shape, np.int32), np.empty(shape, np.int32)
    paths, counts = np.empty(shape, np.float32), np.zeros(len(rows), np.int64)
    deepest = np.asarray(room, np.int64) if budget else np.zeros(len(rows), np.int64)

    again = AGAIN_VOTERS if len(rows) <= _FEW_ROWS else -1

    def part(start: int, stop: int) -> None:
        work = _work()
        work["again"] = again
        kernels.draft(
            rows[start:stop],
            deepest[start:stop],
            budget,
            float(min_probability),
            chain,
            ends,
            live.records,
            log,
            turns,
            contexts,
            weights,
            work,
            tokens[start:stop],
            parents[start:stop],
            depths[start:stop],
            paths[start:stop],
            counts[start:stop],
        )

    parts = min(threads, len(rows) // _ROWS_OF_A_THREAD)
    if parts < 2:
        part(0, len(rows))
    else:
        edges = [len(rows) * i // parts for i in range(parts + 1)]
        others = [_pool().submit(part, *edge) for edge in pairwise(edges[:-1])]
        part(*edges[-2:])
        for other in others:
            other.result()
    if len(rows) == 1 and (total_nodes is None or counts[0] <= total_nodes):
        nodes = int(counts[0])  # a lone row lies as it should; what a mask costs is a good part of its draft
        live.drafted[rows] = nodes
        return DraftBatch(
            tokens=tokens[0, :nodes],
            parents=parents[0, :nodes],
            depths=depths[0, :nodes],
            probabilities=paths[0, :nodes],
            offsets=np.array([0, nodes], np.int64),
        )
    used = np.arange(budget) < counts[:, None]
    if total_nodes is not None and counts.sum() > total_nodes:
        used &= _most_probable(paths, used, max(total_nodes, 0))
        counts = used.sum(1)
    live.drafted[rows] = counts
    return DraftBatch(
        tokens=tokens[used],
        parents=parents[used],
        depths=depths[used],
        probabilities=paths[used],
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
    )


def _most_probable(paths: NDArray[np.float32], used: NDArray[np.bool_], total: int) -> NDArray[np.bool_]:
    """Which nodes are the ``total`` most probable of the batch; ties leave parents before children."""
    kept = np.zeros(used.shape, bool)
    at = np.flatnonzero(used)
    kept.flat[at[np.argsort(-paths.flat[at], kind="stable")[:total]]] = True
    return kept
