from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any, NamedTuple

from turntree.rewards.errors import IsolationError
from turntree.rewards.isolation.server import Fork, Kill
from turntree.rewards.isolation.settings import PoolSettings
from turntree.rewards.isolation.worker import Job
from turntree.rewards.result import Status, Verdict

_START_SECONDS = 120.0
_CPU_DEADLINES = 3  #: limit of processor time per comparison, as a multiple of the deadline
_COMMAND = (
    "import sys; sys.path[:] = {path!r}; from turntree.rewards.isolation.server import serve; serve({descriptor})"
)
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


class Worker(NamedTuple):
    pid: int
    channel: Connection  #: sends jobs, receives verdicts


class ForkServer:
    """A handle on the process that forks workers; not safe to use from two threads at once."""

    def __init__(self) -> None:
        # Start a new interpreter instead of forking: a fork is unsafe with threads, event loops or Ray.
        ours, theirs = Pipe()
        command = _COMMAND.format(path=[entry or os.getcwd() for entry in sys.path], descriptor=theirs.fileno())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", command],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Signals of the caller's terminal must not reach the server.
                start_new_session=True,
                env={**os.environ, **_ONE_THREAD},
            )
        except OSError as error:
            ours.close()
            raise IsolationError(f"the fork server could not be started: {error}") from error
        finally:
            theirs.close()
        self._control = ours

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, memory_bytes: int, cpu_seconds: int) -> Worker:
        """Fork a new worker.

        Args:
            memory_bytes: Address space that the worker may use beyond what it has at the start.
            cpu_seconds: Processor time that one comparison may use.

        Raises:
            IsolationError: The server is gone.
        """
        ours, theirs = Pipe()
        try:
            self._control.send(Fork(memory_bytes, cpu_seconds))
            send_handle(self._control, theirs.fileno(), self.pid)
            pid = self._answer()
        except (OSError, EOFError) as error:
            ours.close()
            raise IsolationError(f"the fork server is gone: {error}") from error
        finally:
            theirs.close()
        return Worker(pid, ours)

    def kill(self, worker: Worker) -> int:
        """Kill a worker and wait for its end; a worker that is already gone is not an error.

        Returns:
            Number of the signal that ended the worker; 0 if it had exited by itself.

        Raises:
            IsolationError: The server is gone, and its workers with it.
        """
        worker.channel.close()
        try:
            self._control.send(Kill(worker.pid))
            return int(self._answer())
        except (OSError, EOFError) as error:
            raise IsolationError(f"the fork server is gone: {error}") from error

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> Any:
        if not self._control.poll(_START_SECONDS):
            raise EOFError(f"no answer in {_START_SECONDS:g} s")
        return self._control.recv()


class WorkerSet:
    """Worker processes and their fork server. Used by the owner's thread alone."""

    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        self.idle: list[Worker] = []
        self.server: ForkServer | None = None
        self._done: dict[int, int] = {}  #: jobs done, by worker pid

    def take(self, *, fresh: bool) -> Worker:
        """Return a worker for one job; a ``fresh`` worker has done no job before.

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
                self._discard_server()
        raise IsolationError("the fork server dies as soon as it is started")

    def give_back(self, worker: Worker, *, spent: bool) -> None:
        done = self._done[worker.pid] = self._done.get(worker.pid, 0) + 1
        if spent or done >= self._settings.jobs_per_worker or len(self.idle) >= self._settings.slots:
            self.reap(worker)
        else:
            self.idle.append(worker)

    def reap(self, worker: Worker) -> int:
        """Kill a worker and return the number of the signal that ended it, 0 if unknown."""
        self._done.pop(worker.pid, None)
        worker.channel.close()
        if self.server is None:
            return 0
        try:
            return self.server.kill(worker)
        except IsolationError:
            self._discard_server()
            return 0

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        for worker in self.idle:
            worker.channel.close()

    def _discard_server(self) -> None:
        # The kernel kills the workers of a dead fork server, so idle workers are gone, too.
        self.close()
        self.server = None
        self.idle.clear()


class Task:
    """A job and the future of its verdict. The future is resolved once; later results are dropped."""

    __slots__ = ("deaths", "failures", "future", "gold_only", "job")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.future: Future[Verdict] = Future()
        self.deaths: list[int] = []  #: signal numbers of the workers that died during this task, 0 for a plain exit
        self.failures: list[Status] = []  #: failures that the answer may have caused
        self.gold_only = False  #: whether only the gold answer is tried

    def resolve(self, verdict: Verdict) -> None:
        with contextlib.suppress(Exception):  # the future was cancelled meanwhile
            self.future.set_result(verdict)

    def fail(self, error: IsolationError) -> None:
        with contextlib.suppress(Exception):
            self.future.set_exception(error)


@dataclass(slots=True)
class Run:
    worker: Worker
    task: Task
    started: float
    slow: bool = False
    cpu_seconds: float | None = None  #: processor time of the worker when the run started to count as slow, seconds


def cpu_seconds(pid: int) -> float:
    # User and system time from /proc, in seconds; 0 if the process is gone.
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
