"""When the episodes of a step were played, and whether those that were expected to be long were.

Two figures of a step: what the order of admission (``turntree.longest_first``) can gain, measured with and without it,
and how good the expectation is that it goes by.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

PACE = "pace"
"""Key of it among an episode's counts."""


@dataclass(slots=True, kw_only=True)
class Pace:
    """The pace of one episode, of all its attempts."""

    slots: int
    """Requests that one replica of the engine runs at once."""
    began: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    ended: float = 0.0
    """Seconds since the epoch."""
    expected: float | None = None
    """Tokens that it was expected to have, as it began; 0 if nothing like it was known. ``None`` if it never began."""
    sampled: int = 0
    """Tokens that it had."""


def pace_metrics(paces: Sequence[Mapping[str, Any]], replicas: int) -> dict[str, float]:
    """Figures of a step.

    Args:
        paces: A ``Pace`` of each episode, as a mapping.

    Example:
        >>> ends = ((2.0, 5, 1), (4.0, 7, 2), (10.0, 9, 3), (10.0, 9, 2))
        >>> paces = [dict(slots=1, began=0.0, ended=end, expected=e, sampled=n) for end, e, n in ends]
        >>> pace_metrics(paces, replicas=3)  # of five pairs that differ four are right, one is a tie
        {'tail_idle': 0.2, 'expected_order': 0.9}
    """
    values: dict[str, float] = {}
    if paces:
        begin, end = min(one["began"] for one in paces), max(one["ended"] for one in paces)
        last = sorted(one["ended"] for one in paces)[-paces[0]["slots"] * max(1, replicas) :]
        if end > begin:
            values["tail_idle"] = sum(end - ended for ended in last) / (len(last) * (end - begin))
    order = _order([(one["expected"], one["sampled"]) for one in paces if one["expected"]])
    return values if order is None else values | {"expected_order": order}


def _order(pairs: Sequence[tuple[float, int]]) -> float | None:
    """Of two with different first numbers, how often the greater one has the greater second number; ties are half."""
    shorter: list[int] = []
    right, told_apart = 0.0, 0
    for _, group in groupby(sorted(pairs), key=lambda pair: pair[0]):
        lengths = [length for _, length in group]
        for length in lengths:
            right += (bisect_left(shorter, length) + bisect_right(shorter, length)) / 2
        told_apart += len(lengths) * len(shorter)
        for length in lengths:
            insort(shorter, length)
    return right / told_apart if told_apart else None
