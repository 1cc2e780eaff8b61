"""Deadlines that follow the machine's speed, and growth of work in place of seconds.

A test says with these that something ends, or that its cost does not explode: never how fast it is.
"""

import asyncio
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

_REFERENCE_SECONDS = 0.05
"""Wall time of the reference work on a quiet machine with two cores of 2.5 GHz."""
LINEAR = 24.0
"""Bound on ``growth``, which is 8 where the work is linear and 64 where it is quadratic."""


@cache
def slowness() -> float:
    """How many times longer this machine takes than the reference, measured once in a process; at least 1."""
    begun = time.perf_counter()
    total = 0
    for number in range(500_000):
        total ^= number * number
    return max(1.0, (time.perf_counter() - begun) / _REFERENCE_SECONDS)


def patience(seconds: float) -> float:
    """``seconds`` of a quiet machine, in seconds of this one as busy as it is now, rounded up to tenths."""
    waiting = os.getloadavg()[0] / (os.cpu_count() or 1)
    return math.ceil(10 * seconds * slowness() * (max(2.0, waiting) if waiting > 1 else 1.0)) / 10


def eventually(holds: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait until ``holds`` is true; an ``AssertionError`` after ``patience(seconds)``."""
    end = time.monotonic() + patience(seconds)
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


async def soon(holds: Callable[[], object], seconds: float = 10.0) -> None:
    """``eventually`` for an event loop."""
    end = time.monotonic() + patience(seconds)
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.001)


@contextmanager
def not_hanging(seconds: float = 10.0) -> Iterator[None]:
    """End a block in the main thread with a ``TimeoutError`` after ``patience(seconds)``, also within a search."""

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
    """How many times more processor time ``work(8 * size)`` takes than ``work(size)``, of sizes up to ``most`` one that
    costs enough to be measured.

    Each of the two is the least of three, as what comes between (say a collection of garbage) only adds: one
    slow run of the small size would make quadratic work look linear, one of the large size linear work quadratic.
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
    """Processor seconds of ``work(size)``, the least of three: of one where even the first is too little to measure."""
    spent = _spent(work, size)
    return spent if spent < 0.001 else min(spent, _spent(work, size), _spent(work, size))


def _spent(work: Callable[[int], object], size: int) -> float:
    """Processor seconds of this thread."""
    begun = time.thread_time()
    work(size)
    return time.thread_time() - begun
