"""The gain in tokens per second that steps with drafts showed, against plain steps of as many tokens."""

from __future__ import annotations

from math import sqrt

_KEPT = 1 - 1 / 32  #: factor on the statistics of steps with drafts after one more step


class MeasuredGain:
    __slots__ = ("plain", "spread", "took", "weight")

    def __init__(self) -> None:
        self.weight = self.plain = self.took = self.spread = 0.0

    def add(self, plain: float, took: float) -> None:
        gained = plain - took
        before = (self.plain - self.took) / self.weight if self.weight else gained
        self.forget(_KEPT)
        self.weight, self.plain, self.took = self.weight + 1, self.plain + plain, self.took + took
        self.spread += (gained - before) * (gained - (self.plain - self.took) / self.weight)

    def forget(self, kept: float) -> None:
        self.weight, self.plain, self.took, self.spread = (
            kept * value for value in (self.weight, self.plain, self.took, self.spread)
        )

    def lower(self) -> float:
        # tokens per second with drafts, as a multiple of plain steps, minus one standard error
        return (self.plain - sqrt(max(self.spread, 0.0))) / self.took if self.took > 0 else 0.0
