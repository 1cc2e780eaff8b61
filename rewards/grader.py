"""The grader of answers: fast path, cache, worker pool, in this order.

Invariant: only verdicts of comparisons that ended are remembered, under a key that holds
the verifier's version, so the outcome of a time-out or a killed worker is never reused. The workers start with the
first comparison that needs one; a forked child starts its own, and a closed grader starts none.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from concurrent.futures import Future

from turntree.rewards.answer_format import AnswerFormat
from turntree.rewards.errors import IsolationError
from turntree.rewards.isolation.owner import Owner
from turntree.rewards.isolation.settings import PoolSettings
from turntree.rewards.isolation.worker import Job
from turntree.rewards.limits import MAX_GOLD
from turntree.rewards.reading.extract import Answer
from turntree.rewards.reading.fast import compare_fast
from turntree.rewards.result import Status, Verdict

VERIFIER_VERSION = "7"
"""Version of the verdicts, part of every cache key; changes whenever a verdict may."""

_Key = tuple[str, str, Answer, AnswerFormat, str]


class Grader:
    """Compares answers; safe to use from any number of threads and event loops."""

    def __init__(self, settings: PoolSettings | None = None, *, cache_size: int = 1 << 14) -> None:
        """Start nothing yet: workers start with the first comparison that needs one.

        Args:
            settings: Deadline, workers and limits of the pool.
            cache_size: Verdicts remembered; 0 remembers none.
        """
        self._settings = settings or PoolSettings()
        self._owner: Owner | None = None
        self._closed = False
        self._cache: OrderedDict[_Key, Verdict] = OrderedDict()
        self._cache_size = cache_size
        self._lock = threading.Lock()

    def compare(
        self, gold: str, answer: Answer, answer_format: AnswerFormat, question: str = ""
    ) -> Verdict | Future[Verdict]:
        """The verdict if it is available at once, else its future.

        Args:
            question: The question asked of the policy, if known.

        Raises:
            IsolationError: The grader is closed, or its workers cannot be started.
        """
        verdict = compare_fast(gold, answer, answer_format, question)
        if verdict is not None:
            return verdict
        if len(gold) > MAX_GOLD:
            return Verdict(correct=None, status=Status.REJECTED_LIMITS)
        key = (VERIFIER_VERSION, gold, answer, answer_format, question)
        with self._lock:
            verdict = self._cache.get(key)
            if verdict is not None:
                self._cache.move_to_end(key)
                return verdict
        future = self._submit(Job(gold, answer, answer_format, question))
        if self._cache_size:
            future.add_done_callback(lambda done: self._remember(key, done))
        return future

    def worker_pids(self) -> list[int]:
        """Process ids of the workers alive now, for monitoring."""
        owner = self._own_owner()
        return owner.worker_pids() if owner is not None else []

    def server_pid(self) -> int | None:
        """Process id of the fork server; ``None`` if it does not run."""
        owner = self._own_owner()
        return owner.server_pid() if owner is not None else None

    def cached(self) -> int:
        """Number of verdicts remembered."""
        return len(self._cache)

    def close(self) -> None:
        """End every worker; comparisons under way end ungraded. Closing twice does nothing."""
        with self._lock:
            owner, self._owner, self._closed = self._own_owner(), None, True
        if owner is not None:
            owner.close()

    def __enter__(self) -> Grader:
        """The grader itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close."""
        self.close()

    def _submit(self, job: Job) -> Future[Verdict]:
        with self._lock:
            if self._closed:
                raise IsolationError("the grader is closed; make a new one")
            owner = self._own_owner()
            if owner is None or owner.closing:
                owner = self._owner = Owner(self._settings)
            return owner.submit(job)

    def _own_owner(self) -> Owner | None:
        """The owner of this process's workers, not that of the process it was forked from."""
        owner = self._owner
        return owner if owner is not None and owner.process == os.getpid() else None

    def _remember(self, key: _Key, done: Future[Verdict]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        verdict = done.result()
        if verdict.correct is None or verdict.status in (Status.TIMEOUT, Status.MEMORY, Status.CRASHED):
            return
        with self._lock:
            self._cache[key] = Verdict(
                correct=verdict.correct, status=verdict.status, method=verdict.method, flags=verdict.flags
            )
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)


_default: Grader | None = None
_default_lock = threading.Lock()


def default_grader() -> Grader:
    """The grader shared by the whole process."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Grader()
        return _default
