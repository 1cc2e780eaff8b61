"""A thread pool for blocking work: tools, environments, sandboxes.

The pool differs from ``ThreadPoolExecutor`` in two ways. Its threads do not keep the interpreter from exiting. And a
call that takes too long can be abandoned: a new thread replaces the call's thread at once. The abandoned call itself
keeps running, because Python cannot stop a thread.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Work(NamedTuple):
    future: Future[Any]
    call: Callable[[], Any]


class WorkerPool(Executor):
    """A thread pool that starts threads on demand, up to a maximum.

    Args:
        max_workers: Maximum number of concurrent calls; further calls wait.
        idle_seconds: How long a thread without work stays alive.

    Example:
        >>> with WorkerPool(2) as pool:
        ...     pool.submit(pow, 2, 5).result(timeout=10)
        32
    """

    def __init__(self, max_workers: int = 256, *, idle_seconds: float = 10.0) -> None:
        if max_workers < 1:
            raise ValueError(f"max_workers must be at least 1, got {max_workers}")
        self.max_workers = max_workers
        self._idle_seconds = idle_seconds
        self._changed = threading.Condition()
        self._waiting: deque[_Work] = deque()
        self._running: set[Future[Any]] = set()
        self._threads = 0
        self._idle = 0
        self._closed = False

    @property
    def num_threads(self) -> int:
        """Number of live threads, without abandoned ones."""
        return self._threads

    @property
    def num_idle(self) -> int:
        """Number of threads that wait for a call."""
        return self._idle

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Run ``fn(*args, **kwargs)`` in a thread.

        Raises:
            RuntimeError: After ``shutdown``.
        """
        work = _Work(Future(), lambda: fn(*args, **kwargs))
        with self._changed:
            if self._closed:
                raise RuntimeError("the pool is shut down")
            self._waiting.append(work)
            # A notified thread counts as idle until it wakes up, so compare the idle threads with all waiting calls.
            if self._idle >= len(self._waiting):
                self._changed.notify()
            else:
                self._start_thread()
        return work.future

    def give_up(self, future: Future[Any]) -> None:
        """Abandon a call: cancel it if it has not started; else let it run on without counting its thread."""
        if future.cancel():
            return
        with self._changed:
            if future in self._running:
                self._running.discard(future)
                self._threads -= 1
                if self._waiting:
                    self._start_thread()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls.

        Args:
            wait: Whether to wait until the accepted calls have ended, except abandoned ones.
            cancel_futures: Whether to cancel the calls that have not started.
        """
        with self._changed:
            self._closed = True
            dropped = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            self._changed.notify_all()
        for work in dropped:
            work.future.cancel()
        if wait:
            with self._changed:
                self._changed.wait_for(lambda: self._threads == 0)

    def _start_thread(self) -> None:
        if self._threads < self.max_workers:
            self._threads += 1
            threading.Thread(target=self._work, name="turntree-worker", daemon=True).start()

    def _work(self) -> None:
        while (work := self._next()) is not None:
            if work.future.set_running_or_notify_cancel():
                try:
                    result = work.call()
                except BaseException as error:
                    work.future.set_exception(error)
                else:
                    work.future.set_result(result)
            with self._changed:
                if work.future not in self._running:  # abandoned: another thread has replaced this one
                    return
                self._running.discard(work.future)
            del work  # an idle thread must not keep the call's arguments alive

    def _next(self) -> _Work | None:
        with self._changed:
            while not self._waiting:
                if self._closed:
                    break
                self._idle += 1
                woken = self._changed.wait(self._idle_seconds)
                self._idle -= 1
                if not woken and not self._waiting:
                    break
            else:
                work = self._waiting.popleft()
                self._running.add(work.future)
                return work
            self._threads -= 1
            self._changed.notify_all()
            return None
