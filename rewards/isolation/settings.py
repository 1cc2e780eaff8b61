"""Settings of the worker pool."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Worker processes and their limits."""

    workers: int = 0
    """Comparisons that run at once, not counting slow comparisons; 0: one per processor, at most 4."""
    deadline_seconds: float = 1.0
    """Wall time of one comparison.

    The first try gets a quarter of this time. A second try, on a new worker, gets all of it, or up to ten times as much
    if the machine is so busy that the worker gets less than half a processor."""
    patience_seconds: float = 0.1
    """Wall time after which a comparison counts as slow and the next comparison starts."""
    memory_bytes: int = 1 << 30
    """Address space that a worker may use beyond what it has at the start."""
    jobs_per_worker: int = 20_000
    """Comparisons after which a worker is replaced."""

    def __post_init__(self) -> None:
        if self.workers < 0 or self.jobs_per_worker < 1:
            raise ValueError(f"workers must be 0 or more and jobs_per_worker 1 or more, got {self}")
        if not 0 < self.patience_seconds <= self.deadline_seconds:
            raise ValueError(f"expected 0 < patience_seconds <= deadline_seconds, got {self}")
        if self.memory_bytes < 1 << 26:
            raise ValueError(f"memory_bytes must be 64 MiB or more, got {self.memory_bytes}")

    @property
    def slots(self) -> int:
        """Number of comparisons that run at once."""
        return self.workers or max(1, min(4, len(os.sched_getaffinity(0))))
