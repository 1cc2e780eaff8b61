"""Seconds of a step with drafts, as a multiple of a plain step: timed at start-up, corrected by the steps seen since.

A correction belongs to a group of batch sizes (powers of two); other groups take it over until they have their own.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_NEWEST = 1 / 8  #: weight of the newest step in a correction, once a few steps were seen


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
        self._corrections: dict[int, tuple[float, int]] = {}  #: by group: correction and number of steps

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
        return self._corrections[min(self._corrections, key=lambda kind: abs(kind - own))][0]

    def see(self, rows: int, width: int, multiple: float) -> None:
        """Learn from a drafted step that took ``multiple`` plain steps."""
        own = (rows - 1).bit_length()
        before, steps = self._corrections.get(own, (self.correction(rows), 0))
        error = multiple * before / self.multiple(rows, width) - before
        self._corrections[own] = before + max(_NEWEST, 1 / (steps + 2)) * error, steps + 1

    def plain_steps_took(self, ratio: float) -> None:
        """Correct for plain steps that turned out to take ``ratio`` times the seconds that were assumed."""
        self._corrections = {kind: (value / ratio, steps) for kind, (value, steps) in self._corrections.items()}
