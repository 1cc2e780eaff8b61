"""Drafts of live turns as one batch, under the limits that a caller gives."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.config import MOST_THREADS
from turntree.spec_tree.draft import DraftBatch
from turntree.spec_tree.kernels import batch as kernels
from turntree.spec_tree.kernels.growth import AGAIN_VOTERS, FEW_ROWS, scratch
from turntree.spec_tree.kernels.layout import DraftLimits, DraftNodes, DraftSources, LiveTurns, Weights

MOST_NODES = 128
"""Nodes of one row at most."""

ROWS_OF_A_THREAD = 32
"""Rows that are worth a thread of their own."""
_LEAD = 12
"""Rows that the calling thread takes more than the others, who begin later; it is not to wait for being woken."""


_own = threading.local()


def own_work() -> NDArray[np.void]:
    """This thread's room to work in."""
    if not hasattr(_own, "work"):
        _own.work = scratch()
    work: NDArray[np.void] = _own.work
    return work


@cache
def pool() -> ThreadPoolExecutor:
    """The threads that draft parts of a batch."""
    return ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="forest-draft")


def propose(
    rows: NDArray[np.int64],
    room: Sequence[int],
    limits: DraftLimits,
    live: LiveTurns,
    sources: DraftSources,
    weights: Weights,
    *,
    threads: int = 1,
) -> DraftBatch:
    """Draft for ``rows`` of ``live``, each up to a depth of ``room``.

    Large batches are split among ``threads`` threads; the result does not depend on it.

    Raises:
        ValueError: If ``room`` does not have one entry a row.
    """
    if len(room) != len(rows):
        raise ValueError(f"room needs one entry a row: expected {len(rows)}, got {len(room)}")
    budget, count = limits.budget, len(rows)
    size = count * budget
    nodes = DraftNodes(
        tokens=np.empty(size, np.int32),
        parents=np.empty(size, np.int32),
        depths=np.empty(size, np.int32),
        paths=np.empty(size, np.float32),
    )
    counts = np.empty(count, np.int64)
    deepest = np.asarray(room, np.int64) if budget else np.zeros(count, np.int64)
    again = AGAIN_VOTERS if count <= FEW_ROWS else -1

    def part(start: int, stop: int) -> slice:
        """Draft for these rows; returns where their nodes are."""
        own, work, first = slice(start, stop), own_work(), start * budget
        work["again"] = again
        drafted = kernels.draft(
            rows[own], deepest[own], limits, live.records, sources, weights, work, nodes, first, counts[own]
        )
        return slice(first, first + drafted)

    parts = min(threads, count // ROWS_OF_A_THREAD)
    if parts < 2:
        places = [part(0, count)]
    else:
        edges = [*((count - _LEAD) * i // parts for i in range(parts)), count]
        others = [pool().submit(part, *edge) for edge in pairwise(edges[:-1])]
        last = part(*edges[-2:])
        places = [*(other.result() for other in others), last]
    tokens, parents, depths, paths = (_joined(array, places) for array in nodes)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return DraftBatch(tokens=tokens, parents=parents, depths=depths, probabilities=paths, offsets=offsets)


def shortened(batch: DraftBatch, total: int, rows: NDArray[np.int64], live: LiveTurns) -> DraftBatch:
    """The ``total`` most probable nodes of a draft for ``rows``; ties leave parents before children."""
    if len(batch.tokens) <= total:
        return batch
    kept = np.zeros(len(batch.tokens), bool)
    kept[np.argsort(-batch.probabilities, kind="stable")[: max(total, 0)]] = True
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])[batch.offsets]
    live.drafted[rows] = np.diff(offsets)
    return DraftBatch(
        tokens=batch.tokens[kept],
        parents=batch.parents[kept],
        depths=batch.depths[kept],
        probabilities=batch.probabilities[kept],
        offsets=offsets,
    )


def _joined(array: NDArray[Any], places: Sequence[slice]) -> NDArray[Any]:
    return array[places[0]] if len(places) == 1 else np.concatenate([array[place] for place in places])
