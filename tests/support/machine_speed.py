"""Deadlines that scale with the machine's speed, and growth of work instead of seconds.

With these, a test asserts that something ends or that its cost does not explode, never how fast it is.
"""

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

_REFERENCE_SECONDS = 0.05  #: wall time of the reference work on a quiet machine with two 2.5 GHz cores
LINEAR = 24.0  #: bound on ``growth``: linear work gives 8, quadratic work 64


@cache
def slowness() -> float:
    """Return how many times slower this machine is than the reference; at least 1, measured once."""
    begun = time.perf_counter()
    total = 0
    for number in range(500_000):
        total ^= number * number
    return max(1.0, (time.perf_counter() - begun) / _REFERENCE_SECONDS)


def patience(seconds: float) -> float:
    """Convert ``seconds`` of a quiet machine to seconds of this one under its current load."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return math.ceil(10 * seconds * slowness() * (max(2.0, waiting) if waiting > 1 else 1.0)) / 10


def eventually(holds: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until ``holds`` is true; raise ``AssertionError`` after ``patience(seconds)``."""
    end = time.monotonic() + patience(seconds)
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


async def soon(holds: Callable[[], object], seconds: float = 10.0) -> None:
    end = time.monotonic() + patience(seconds)
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.001)


@contextmanager
def not_hanging(seconds: float = 10.0) -> Iterator[None]:
    """Raise ``TimeoutError`` in the main thread after ``patience(seconds)``, even inside a search."""

    def ring(*_: object) -> None:
        raise TimeoutError(f"this hangs: it was given the time that a quiet machine takes for {seconds:g} s of work")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, patience(seconds))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def growth(work: Callable[[int], object], most: int) -> float:
    """Return the ratio of CPU time of ``work(8 * size)`` to ``work(size)``, for a measurable size up to ``most``.

    Each of the two is the least of three runs, since interference (such as garbage collection) only adds time: one slow
    small run would make quadratic work look linear, and one slow large run would make linear work look quadratic.
    """
    size = max(1, most >> 9)
    while (small := _least(work, size)) < 0.001 and size * 16 <= most:
        size *= 2
    small = max(small, 0.001)
    large = math.inf
    for _ in range(3):
        large = min(large, _spent(work, 8 * size))
        if large < LINEAR * small:
            break
    return large / small


def _least(work: Callable[[int], object], size: int) -> float:
    # One run is enough where the work is too short to measure.
    spent = _spent(work, size)
    return spent if spent < 0.001 else min(spent, _spent(work, size), _spent(work, size))


def _spent(work: Callable[[int], object], size: int) -> float:
    begun = time.thread_time()
    work(size)
    return time.thread_time() - begun
