"""A stopwatch for an episode that survives snapshots."""

from __future__ import annotations

from time import monotonic


class Stopwatch:
    """Runs from its creation. A pickle keeps the seconds so far; the copy continues from there.

    >>> Stopwatch().seconds < 1
    True
    """

    __slots__ = ("_start",)

    def __init__(self) -> None:
        self._start = monotonic()

    @property
    def seconds(self) -> float:
        """Time since the beginning."""
        return monotonic() - self._start

    def __getstate__(self) -> float:
        return self.seconds

    def __setstate__(self, seconds: float) -> None:
        self._start = monotonic() - seconds
