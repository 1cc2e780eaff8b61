"""Seconds of a step with drafts, as a multiple of a plain step: timed at start-up, corrected by the steps seen since.

A correction belongs to a group of batch sizes (powers of two); other groups take it over until they have their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

import numpy as np

_STEPS = 15  #: steps of a group, the newest, whose median is its correction


class DraftedCost:
    """Cost of drafted steps by requests and draft length.

    Example:
        >>> cost = DraftedCost()
        >>> cost.learn([(1, 0, 0.002), (1, 8, 0.003), (64, 0, 0.004), (64, 8, 0.008)])
        >>> cost.widths(32), cost.widths(65), round(cost.multiple(64, 8), 2)
        ((8,), (), 2.0)
    """

    def __init__(self) -> None:
        self._timed: dict[int, tuple[list[int], list[float]]] = {}  #: by width: requests, ascending, and seconds
        self._seen: dict[int, deque[float]] = {}  #: by group: multiple seen, divided by the multiple at start-up
        self._corrections: dict[int, float] = {}

    @property
    def known(self) -> bool:
        return 0 in self._timed and len(self._timed) > 1

    def learn(self, costs: Iterable[tuple[int, int, float]]) -> None:
        """Replace the start-up times by ``costs``: requests, width (0 for a plain step) and seconds of each."""
        timed: dict[int, list[tuple[int, float]]] = {}
        for rows, width, seconds in sorted(costs):
            timed.setdefault(width, []).append((rows, seconds))
        self._timed = {
            width: ([rows for rows, _ in steps], [seconds for _, seconds in steps]) for width, steps in timed.items()
        }

    def widths(self, rows: int) -> tuple[int, ...]:
        """Return the draft lengths that were timed for at least ``rows`` requests."""
        return tuple(width for width, (timed, _) in self._timed.items() if width and rows <= timed[-1])

    def timed(self, rows: int, width: int) -> float:
        """Return the seconds of a step at start-up."""
        return float(np.interp(rows, *self._timed[width]))

    def multiple(self, rows: int, width: int) -> float:
        """Return the cost of a drafted step in plain steps."""
        return self.timed_multiple(rows, width) * self.correction(rows)

    def timed_multiple(self, rows: int, width: int) -> float:
        """Return the cost of a drafted step in plain steps at start-up."""
        return self.timed(rows, width) / self.timed(rows, 0)

    def correction(self, rows: int) -> float:
        own = (rows - 1).bit_length()
        if not self._corrections:
            return 1.0
        return self._corrections[min(self._corrections, key=lambda kind: abs(kind - own))]

    def see(self, rows: int, width: int, multiple: float) -> None:
        """Learn from a drafted step that took ``multiple`` plain steps."""
        own = (rows - 1).bit_length()
        seen = self._seen.setdefault(own, deque([self.correction(rows)], maxlen=_STEPS))
        seen.append(multiple / self.timed_multiple(rows, width))
        self._corrections[own] = median(seen)

    def plain_steps_took(self, ratio: float) -> None:
        """Correct for plain steps that turned out to take ``ratio`` times the seconds that were assumed."""
        for kind, seen in self._seen.items():
            self._seen[kind] = deque((value / ratio for value in seen), maxlen=_STEPS)
            self._corrections[kind] = median(self._seen[kind])
