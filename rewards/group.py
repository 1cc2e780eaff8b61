from __future__ import annotations

from collections.abc import Sequence

from turntree.rewards.sample import Sample


def groups_of(samples: Sequence[Sample]) -> list[list[int]]:
    """Return the indices of each task's samples; a sample without a task id is its own group.

    Args:
        samples: Samples, shape (samples,).

    Returns:
        One list of indices per task, in order of first appearance; each list keeps the order of the batch.

    Example:
        >>> groups_of([Sample(turns=("a",), task_id="1"), Sample(turns=("b",), task_id="1"), Sample(turns=("c",))])
        [[0, 1], [2]]
    """
    places: dict[tuple[str, int], list[int]] = {}
    for place, sample in enumerate(samples):
        places.setdefault((sample.task_id, -1 if sample.task_id else place), []).append(place)
    return list(places.values())
