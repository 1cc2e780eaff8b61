"""The workers of one process, forked when they are needed: the idle ones wait to be taken, spent ones are ended.

Used by the owner's thread alone.
"""

from __future__ import annotations

from turntree.rewards.errors import IsolationError
from turntree.rewards.isolation.forkserver import ForkServer, Worker
from turntree.rewards.isolation.settings import PoolSettings

_CPU_DEADLINES = 3


class Crew:
    """Workers and the fork server that they come from, which is replaced if it is killed from outside."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self.idle: list[Worker] = []
        self.server: ForkServer | None = None
        self._done: dict[int, int] = {}
        """Jobs that each worker has done."""

    def take(self, *, fresh: bool) -> Worker:
        """A worker for one job; a ``fresh`` one has done none.

        Raises:
            IsolationError: If no fork server stays alive.
        """
        if self.idle and not fresh:
            return self.idle.pop()
        cpu_limit = int(_CPU_DEADLINES * self._settings.deadline_seconds) + 2
        for _ in range(2):
            if self.server is None:
                self.server = ForkServer()
            try:
                return self.server.fork(self._settings.memory_bytes, cpu_limit)
            except IsolationError:
                self._lose_server()
        raise IsolationError("the fork server dies as soon as it is started")

    def give_back(self, worker: Worker, *, spent: bool) -> None:
        """Keep a worker whose job is done, unless it is ``spent``, has done its number of jobs or is one too many."""
        done = self._done[worker.pid] = self._done.get(worker.pid, 0) + 1
        if spent or done >= self._settings.jobs_per_worker or len(self.idle) >= self._settings.places:
            self.bury(worker)
        else:
            self.idle.append(worker)

    def bury(self, worker: Worker) -> int:
        """End a worker; returns the number of the signal that ended it, 0 if none is known."""
        self._done.pop(worker.pid, None)
        worker.channel.close()
        if self.server is None:
            return 0
        try:
            return self.server.kill(worker)
        except IsolationError:
            self._lose_server()
            return 0

    def close(self) -> None:
        """End the fork server and all workers."""
        if self.server is not None:
            self.server.close()
        for worker in self.idle:
            worker.channel.close()

    def _lose_server(self) -> None:
        """Discard a fork server that is gone, and the idle workers that died with it."""
        self.close()
        self.server = None
        self.idle.clear()
