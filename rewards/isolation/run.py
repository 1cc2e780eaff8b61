from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future
from dataclasses import dataclass

from turntree.rewards.errors import IsolationError
from turntree.rewards.isolation.worker import Job
from turntree.rewards.isolation.workers import Worker
from turntree.rewards.result import Status, Verdict


class Task:
    """A job and the future of its verdict, which is resolved once; later results are dropped."""

    __slots__ = ("asks_gold", "deaths", "failures", "future", "job")

    def __init__(self, job: Job) -> None:
        self.job = job
        self.future: Future[Verdict] = Future()
        self.deaths: list[int] = []  #: signal numbers of the workers that died during this task, 0 for a plain exit
        self.failures: list[Status] = []  #: failures that the answer may have caused
        self.asks_gold = False  #: whether only the gold answer is tried

    def resolve(self, verdict: Verdict) -> None:
        with contextlib.suppress(Exception):  # cancelled meanwhile
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
    cpu_seconds: float | None = None  #: processor time of the worker when its patience ended


def cpu_seconds(pid: int) -> float:
    # User and system time from /proc, in seconds; 0 if the process is gone.
    try:
        with open(f"/proc/{pid}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
