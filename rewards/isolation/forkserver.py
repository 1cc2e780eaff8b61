from __future__ import annotations

import os
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from typing import Any, NamedTuple

from turntree.rewards.errors import IsolationError
from turntree.rewards.isolation.server import Fork, Kill

_START_SECONDS = 120.0
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
        ours, theirs = Pipe()
        command = _COMMAND.format(path=[entry or os.getcwd() for entry in sys.path], descriptor=theirs.fileno())
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", command],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
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
