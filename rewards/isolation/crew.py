from __future__ import annotations

from turntree.rewards.errors import IsolationError
from turntree.rewards.isolation.forkserver import ForkServer, Worker
from turntree.rewards.isolation.settings import PoolSettings

_CPU_DEADLINES = 3


class Crew:
    """Worker processes and their fork server. Used by the owner's thread alone."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self.idle: list[Worker] = []
        self.server: ForkServer | None = None
        self._done: dict[int, int] = {}  #: jobs done, by worker pid

    def take(self, *, fresh: bool) -> Worker:
        """Return a worker for one job; a ``fresh`` worker has done none.

        Raises:
            IsolationError: The fork server dies as soon as it is started.
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
        done = self._done[worker.pid] = self._done.get(worker.pid, 0) + 1
        if spent or done >= self._settings.jobs_per_worker or len(self.idle) >= self._settings.places:
            self.bury(worker)
        else:
            self.idle.append(worker)

    def bury(self, worker: Worker) -> int:
        """Kill a worker and return the number of the signal that ended it, 0 if unknown."""
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
        if self.server is not None:
            self.server.close()
        for worker in self.idle:
            worker.channel.close()

    def _lose_server(self) -> None:
        # The kernel kills the workers of a dead fork server, so the idle ones are gone too.
        self.close()
        self.server = None
        self.idle.clear()
