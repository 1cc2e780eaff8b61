from __future__ import annotations

from time import monotonic


class Stopwatch:
    """Measures seconds since its creation; a pickle keeps the seconds so far, and the copy continues from there.

    >>> Stopwatch().seconds < 1
    True
    """

    __slots__ = ("_start",)

    def __init__(self) -> None:
        self._start = monotonic()

    @property
    def seconds(self) -> float:
        return monotonic() - self._start

    def __getstate__(self) -> float:
        return self.seconds

    def __setstate__(self, seconds: float) -> None:
        self._start = monotonic() - seconds
