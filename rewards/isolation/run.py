"""A comparison on its way, and the worker that runs it.

Invariant: a task is resolved once; what comes later is dropped.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from concurrent.futures import Future
from dataclasses import dataclass

from turntree.rewards.errors import IsolationError
from turntree.rewards.isolation.forkserver import Worker
from turntree.rewards.isolation.worker import Job
from turntree.rewards.result import Status, Verdict


class Task:
    """A job and the future of its verdict."""

    __slots__ = ("asks_gold", "deaths", "failures", "future", "job")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.future: Future[Verdict] = Future()
        self.deaths: list[int] = []
        """How workers ended under it: numbers of signals, 0 where one just ended."""
        self.failures: list[Status] = []
        """How comparisons ended that the answer may be to blame for."""
        self.asks_gold = False
        """Whether it is only asked what the gold answer is worth by itself."""

    def resolve(self, verdict: Verdict) -> None:
        """End with a verdict."""
        with contextlib.suppress(Exception):  # cancelled meanwhile
            self.future.set_result(verdict)

    def fail(self, error: IsolationError) -> None:
        """End with an error of the surroundings."""
        with contextlib.suppress(Exception):
            self.future.set_exception(error)


@dataclass(slots=True)
class Run:
    """A worker with the task that it works on."""

    worker: Worker
    task: Task
    started: float
    slow: bool = False
    cpu_seconds: float | None = None
    """Processor time of the worker when its patience ended."""


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used; 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_readable(channel: socket.socket) -> bool:
    """Whether an answer waits in a socket."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    return bool(poll.poll(0))
