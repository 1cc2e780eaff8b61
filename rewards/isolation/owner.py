"""The thread that owns this process's workers and waits on their sockets.

Other threads submit jobs (one comparison each) and get futures. A job ends within its deadline: a worker that takes
longer is killed and replaced. A job that fails through its own fault is retried once on a new worker. If the retry
fails, too, the gold answer is tried alone. If that succeeds, the answer is wrong, otherwise ungraded.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing.connection import Connection
from time import monotonic

from turntree.rewards.errors import IsolationError
from turntree.rewards.isolation.settings import PoolSettings
from turntree.rewards.isolation.worker import Job
from turntree.rewards.isolation.workers import Run, Task, WorkerSet, cpu_seconds
from turntree.rewards.reading import flags
from turntree.rewards.result import Status, Verdict

_log = logging.getLogger(__name__)
_TRIES = 3
#: maximum deadlines for a comparison that gets less than half of a processor; ungraded after that
_STARVED_DEADLINES = 10
#: signals that a process causes by its own fault; all other signals come from outside
_OWN_DEATHS = frozenset([signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGXCPU])


class Waker:
    """A socket pair with which any thread wakes the owner thread from ``select``."""

    def __init__(self) -> None:
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)

    def wake(self) -> None:
        # If the socket is full or closed, the owner is about to wake or gone, so the byte is not needed.
        with contextlib.suppress(OSError):
            self._sender.send(b".")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self.receiver.recv(4096)

    def close(self) -> None:
        self.receiver.close()
        self._sender.close()


class Owner:
    def __init__(self, settings: PoolSettings) -> None:
        self.process = os.getpid()
        self._settings = settings
        self._incoming: deque[Task] = deque()
        self._fast_queue: deque[Task] = deque()
        self._slow_queue: deque[Task] = deque()
        self._workers = WorkerSet(settings)
        self._runs: dict[Connection, Run] = {}
        self._selector = selectors.DefaultSelector()
        self._waker = Waker()
        self._selector.register(self._waker.receiver, selectors.EVENT_READ)
        self.closing = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run_loop, name="turntree-rewards", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> Future[Verdict]:
        task = Task(job)
        self._incoming.append(task)
        self._waker.wake()
        return task.future

    def worker_pids(self) -> list[int]:
        return [worker.pid for worker in (*self._workers.idle, *(run.worker for run in tuple(self._runs.values())))]

    def server_pid(self) -> int | None:
        server = self._workers.server
        return server.pid if server is not None else None

    def close(self) -> None:
        self.closing = True
        self._waker.wake()
        self._thread.join(timeout=10)

    def _run_loop(self) -> None:
        try:
            while not self.closing:
                self._fast_queue.extend(self._incoming.popleft() for _ in range(len(self._incoming)))
                self._start_tasks()
                for key, _ in self._selector.select(self._wait_seconds()):
                    if key.fileobj is self._waker.receiver:
                        self._waker.clear()
                    else:
                        self._finish(self._runs[key.fileobj])  # type: ignore[index]
                self._enforce_deadlines(monotonic())
        except Exception as error:
            _log.exception("the owner of the comparison workers failed")
            self._failure = error
        finally:
            self.closing = True
            self._resolve_all()

    def _wait_seconds(self) -> float | None:
        # Seconds until the next deadline, or until the next run counts as slow; None: wait only for sockets.
        settings, now = self._settings, monotonic()
        ends = []
        for run in self._runs.values():
            impatient = run.cpu_seconds is None
            end = run.started + (settings.patience_seconds if impatient else self._deadline(run))
            # A starved run (too little processor time) is past its deadline: look again later instead of spinning.
            ends.append(end if end > now or impatient else now + settings.deadline_seconds / 10)
        return max(0.0, min(ends) - now) if ends else None

    def _start_tasks(self) -> None:
        slow = sum(run.slow for run in self._runs.values())
        # Slow runs have slots of their own, so short comparisons never wait for long comparisons.
        while self._fast_queue and len(self._runs) - slow < self._settings.slots:
            self._start(self._fast_queue.popleft(), slow=False)
        while self._slow_queue and slow < self._settings.slots:
            self._start(self._slow_queue.popleft(), slow=True)
            slow += 1

    def _start(self, task: Task, *, slow: bool) -> None:
        if task.future.cancelled():
            return
        gone = 0
        while True:
            try:
                worker = self._workers.take(fresh=bool(task.deaths or task.failures or gone))
            except IsolationError:
                # Put the task back in the queue, so that ``_resolve_all`` resolves its future.
                self._fast_queue.appendleft(task)
                raise
            try:
                worker.channel.send(task.job)
                break
            except OSError:  # the worker was killed while idle
                self._workers.reap(worker)
                gone += 1
                if gone > 2 * self._settings.slots + _TRIES:
                    self._fast_queue.appendleft(task)
                    raise IsolationError("workers die before they are given work") from None
        self._runs[worker.channel] = Run(worker, task, monotonic(), slow)
        self._selector.register(worker.channel, selectors.EVENT_READ)

    def _finish(self, run: Run) -> None:
        self._remove(run)
        try:
            verdict, seconds = run.worker.channel.recv()
        except (EOFError, OSError):
            self._retry_death(run, self._workers.reap(run.worker))
            return
        if run.task.gold_only:
            self._settle(run.task, understood=verdict.correct is True, seconds=seconds)
        elif verdict.status in (Status.MEMORY, Status.CRASHED):
            self._retry_failure(run, verdict.status)
        else:
            run.task.resolve(replace(verdict, seconds=seconds))
        self._workers.give_back(run.worker, spent=verdict.status is Status.MEMORY)

    def _enforce_deadlines(self, now: float) -> None:
        settings = self._settings
        slow = sum(run.slow for run in self._runs.values())
        for run in tuple(self._runs.values()):
            spent = now - run.started
            if run.cpu_seconds is None and spent >= settings.patience_seconds:
                run.cpu_seconds = cpu_seconds(run.worker.pid)
            if spent >= self._deadline(run):
                if run.worker.channel.poll():  # the comparison ended while this thread was not scheduled
                    self._finish(run)
                    continue
                starved = self._is_starved(run)
                if starved and spent < _STARVED_DEADLINES * self._deadline(run):
                    continue
                self._remove(run)
                self._workers.reap(run.worker)
                if starved and run.task.failures:
                    run.task.resolve(Verdict(correct=None, status=Status.TIMEOUT, seconds=spent))
                else:
                    self._retry_failure(run, Status.TIMEOUT)
            elif not run.slow and spent >= settings.patience_seconds:
                if slow < settings.slots:
                    run.slow = True
                    slow += 1
                elif self._fast_queue and not run.worker.channel.poll():  # no slot for slow work: start again later
                    self._remove(run)
                    self._workers.reap(run.worker)
                    self._slow_queue.append(run.task)

    def _deadline(self, run: Run) -> float:
        # The first try gets a quarter of the deadline: most overruns come from a disturbed worker, not from the answer.
        whole = self._settings.deadline_seconds
        return whole if run.task.failures else max(whole / 4, self._settings.patience_seconds)

    def _is_starved(self, run: Run) -> bool:
        # If a worker got less than half of a processor, the machine slowed it down, not the comparison.
        used = cpu_seconds(run.worker.pid) - (run.cpu_seconds or 0.0)
        return used < (self._deadline(run) - self._settings.patience_seconds) / 2

    def _retry_death(self, run: Run, death: int) -> None:
        task = run.task
        task.deaths.append(death)
        # A worker may be killed from outside, so blame the answer only after several deaths.
        if len(task.deaths) < _TRIES:
            (self._slow_queue if run.slow else self._fast_queue).appendleft(task)
        elif _OWN_DEATHS.issuperset(task.deaths) and not task.gold_only:
            task.failures.append(Status.CRASHED)  # that was the second try, and the third
            self._retry_failure(run, Status.CRASHED)
        else:
            task.resolve(Verdict(correct=None, status=Status.CRASHED, seconds=monotonic() - run.started))

    def _retry_failure(self, run: Run, status: Status) -> None:
        task = run.task
        if task.gold_only:
            self._settle(task, understood=False, seconds=monotonic() - run.started)
            return
        task.failures.append(status)
        if len(task.failures) > 1:
            task.gold_only = True
            task.job = task.job._replace(answer=None)
        self._slow_queue.append(task)

    def _settle(self, task: Task, *, understood: bool, seconds: float) -> None:
        # The answer failed twice. If the gold answer alone succeeds, the answer is wrong, otherwise ungraded.
        status = task.failures[-1]
        flag = () if not understood else (flags.NOT_UNDERSTOOD,)
        task.resolve(Verdict(correct=False if understood else None, status=status, flags=flag, seconds=seconds))

    def _remove(self, run: Run) -> None:
        self._selector.unregister(run.worker.channel)
        del self._runs[run.worker.channel]

    def _resolve_all(self) -> None:
        self._workers.close()
        waiting = [run.task for run in self._runs.values()] + [*self._fast_queue, *self._slow_queue, *self._incoming]
        for task in waiting:
            if self._failure is None:
                task.resolve(Verdict(correct=None, status=Status.CRASHED))
            else:
                task.fail(IsolationError(f"comparisons cannot be isolated: {self._failure}"))
        for run in self._runs.values():
            run.worker.channel.close()
        self._selector.close()
        self._waker.close()
