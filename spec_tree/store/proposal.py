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

MOST_NODES = 128  #: maximum nodes (drafted tokens) of one row

ROWS_OF_A_THREAD = 32  #: number of rows for which one more thread pays
_LEAD = 12  #: Extra rows for the calling thread, because the pool's threads start later.


_thread_work = threading.local()


def own_work() -> NDArray[np.void]:
    if not hasattr(_thread_work, "work"):
        _thread_work.work = scratch()
    work: NDArray[np.void] = _thread_work.work
    return work


@cache
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="forest-draft")


def propose(
    rows: NDArray[np.int64],
    max_depths: Sequence[int],
    limits: DraftLimits,
    live: LiveTurns,
    sources: DraftSources,
    weights: Weights,
    *,
    threads: int = 1,
) -> DraftBatch:
    """Draft for ``rows`` of ``live`` up to ``max_depths``; the result does not depend on ``threads``."""
    if len(max_depths) != len(rows):
        raise ValueError(f"max_depths needs one entry per row: expected {len(rows)}, got {len(max_depths)}")
    budget, count = limits.budget, len(rows)
    size = count * budget
    nodes = DraftNodes(
        tokens=np.empty(size, np.int32),
        parents=np.empty(size, np.int32),
        depths=np.empty(size, np.int32),
        paths=np.empty(size, np.float32),
    )
    counts = np.empty(count, np.int64)
    deepest = np.asarray(max_depths, np.int64) if budget else np.zeros(count, np.int64)
    again = AGAIN_VOTERS if count <= FEW_ROWS else -1

    def part(start: int, stop: int) -> slice:
        """Draft for these rows; return the span of their nodes."""
        span, work, first = slice(start, stop), own_work(), start * budget
        work["again"] = again  # in a small batch there is time to look up more candidates
        drafted = kernels.draft(
            rows[span], deepest[span], limits, live.records, sources, weights, work, nodes, first, counts[span]
        )
        return slice(first, first + drafted)

    parts = min(threads, count // ROWS_OF_A_THREAD)
    if parts < 2:
        spans = [part(0, count)]
    else:
        edges = [*((count - _LEAD) * i // parts for i in range(parts)), count]
        # The calling thread takes the last part, which is the largest, while the pool's threads start.
        futures = [pool().submit(part, *edge) for edge in pairwise(edges[:-1])]
        last = part(*edges[-2:])
        spans = [*(future.result() for future in futures), last]
    tokens, parents, depths, paths = (_joined(array, spans) for array in nodes)
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return DraftBatch(tokens=tokens, parents=parents, depths=depths, probabilities=paths, offsets=offsets)


def shortened(batch: DraftBatch, total: int, rows: NDArray[np.int64], live: LiveTurns) -> DraftBatch:
    """Return the ``total`` most probable nodes of a draft for ``rows``."""
    if len(batch.tokens) <= total:
        return batch
    # The sort is stable: a child is never more probable than its parent, and on a tie the parent comes first.
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


def _joined(array: NDArray[Any], spans: Sequence[slice]) -> NDArray[Any]:
    return array[spans[0]] if len(spans) == 1 else np.concatenate([array[span] for span in spans])
