"""A pool of worker processes for comparisons, usable by callers of every kind.

Invariant: one owner thread a process, started with the first comparison; a forked child starts its own, and a closed
pool starts none. The owner decides who waits, and for how long.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future

from turntree.rewards.errors import IsolationError
from turntree.rewards.isolation.owner import Owner
from turntree.rewards.isolation.settings import PoolSettings
from turntree.rewards.isolation.worker import Job
from turntree.rewards.result import Verdict


class Pool:
    """Runs comparisons; nothing is started before the first one."""

    def __init__(self, settings: PoolSettings) -> None:
        """Store the settings."""
        self.settings = settings
        self._lock = threading.Lock()
        self._owner: Owner | None = None
        self._closed = False

    def submit(self, job: Job) -> Future[Verdict]:
        """Submit a job; returns the future verdict.

        Raises:
            IsolationError: The pool is closed.
        """
        with self._lock:
            if self._closed:
                raise IsolationError("the pool is closed; make a new Judge")
            owner = self._owner
            if owner is None or owner.closing or owner.process != os.getpid():  # a forked child starts its own workers
                owner = self._owner = Owner(self.settings)
            return owner.submit(job)

    def worker_pids(self) -> list[int]:
        """Process ids of the workers alive now, for monitoring."""
        owner = self._owner
        return owner.worker_pids() if owner is not None and owner.process == os.getpid() else []

    def server_pid(self) -> int | None:
        """Process id of the fork server; ``None`` if it does not run."""
        owner = self._owner
        return owner.server_pid() if owner is not None and owner.process == os.getpid() else None

    def close(self) -> None:
        """End every worker; jobs that have not ended are undecided."""
        with self._lock:
            self._closed = True
            if self._owner is not None and self._owner.process == os.getpid():
                self._owner.close()
            self._owner = None
