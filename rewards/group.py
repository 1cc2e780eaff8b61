"""Grouping of a batch into the samples of each task.

Invariant: grouping keeps the order of the batch, and every sample is in exactly one group.
"""

from __future__ import annotations

from collections.abc import Sequence

from turntree.rewards.sample import Sample


def groups_of(samples: Sequence[Sample]) -> list[list[int]]:
    """Indices of the samples of each task; a sample without a task id is a group of its own.

    Args:
        samples: Samples, shape (samples,).

    Returns:
        Indices in ``samples``, one list a task, in order of first appearance.

    Example:
        >>> groups_of([Sample(turns=("a",), task_id="1"), Sample(turns=("b",), task_id="1"), Sample(turns=("c",))])
        [[0, 1], [2]]
    """
    places: dict[tuple[str, int], list[int]] = {}
    for place, sample in enumerate(samples):
        places.setdefault((sample.task_id, -1 if sample.task_id else place), []).append(place)
    return list(places.values())
