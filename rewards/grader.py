"""Grader of answers: a fast path, then a cache, then a pool of worker processes."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from concurrent.futures import Future
from fractions import Fraction
from functools import lru_cache

from turntree.rewards.answer_format import AnswerFormat, Kind
from turntree.rewards.errors import IsolationError
from turntree.rewards.isolation.owner import Owner
from turntree.rewards.isolation.settings import PoolSettings
from turntree.rewards.isolation.worker import Job
from turntree.rewards.limits import MAX_GOLD
from turntree.rewards.reading.answer import parse_number
from turntree.rewards.reading.extract import Answer
from turntree.rewards.result import Status, Verdict

VERIFIER_VERSION = "7"  #: part of every cache key; changes whenever a verdict may change
_Key = tuple[str, str, Answer, AnswerFormat, str]
_STRING = Verdict(correct=True, method="string")
_NUMBER = {True: Verdict(correct=True, method="number"), False: Verdict(correct=False, method="number")}
_MAX_LENGTH = 40
_MAX_DECIMALS = 11


def compare_fast(gold: str, answer: Answer, answer_format: AnswerFormat, question: str = "") -> Verdict | None:
    """Return the verdict on equal strings and plain numbers; ``None`` for all other answers.

    A verdict is returned only where the full comparison would return the same verdict.

    Example:
        >>> from turntree.rewards.answer_format import EXACT
        >>> compare_fast("1200", Answer("1,200.0"), EXACT).correct
        True
    """
    if answer.candidates or answer.alternatives or answer_format.kind is Kind.OPTION:
        return None
    text = answer.text
    if text == gold and text.strip():
        return _STRING
    if answer_format.is_tolerant:
        return None
    right = _number(gold)
    if right is None:
        return None
    if (question or answer_format.kind is Kind.INTEGER) and "/" in text:
        return None
    ours = _number(text)
    return None if ours is None else _NUMBER[ours == right]


@lru_cache(maxsize=4096)
def _number(text: str) -> Fraction | int | None:
    # Leave percentages and long decimals to the full comparison, which has special rules for them.
    if len(text) > _MAX_LENGTH:
        return None
    if text.isdecimal() and text.isascii():
        return int(text)
    if "%" in text or len(text.partition(".")[2]) > _MAX_DECIMALS:
        return None
    return parse_number(text)


class Grader:
    """Compare answers with gold answers; safe to use from any number of threads and event loops.

    The workers start with the first comparison that needs a worker. A forked child starts its own workers.
    """

    def __init__(self, settings: PoolSettings | None = None, *, cache_size: int = 1 << 14) -> None:
        """Create a grader without starting its workers.

        Args:
            settings: Deadline, workers and limits of the pool.
            cache_size: Number of verdicts to cache; 0 disables the cache.
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
        """Return the verdict if it is available at once, else a future of the verdict.

        Args:
            gold: The right answer, plain or LaTeX.
            answer: The answer extracted from a text.
            answer_format: Rules of the data set.
            question: The question given to the policy, if known.

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
        """Return the process ids of the workers that are alive now, for monitoring."""
        owner = self._own_owner()
        return owner.worker_pids() if owner is not None else []

    def server_pid(self) -> int | None:
        """Return the process id of the fork server (the process that forks workers), ``None`` if it does not run."""
        owner = self._own_owner()
        return owner.server_pid() if owner is not None else None

    def cached(self) -> int:
        """Return the number of cached verdicts."""
        return len(self._cache)

    def close(self) -> None:
        """End every worker. Running comparisons end ungraded; a second call does nothing."""
        with self._lock:
            owner, self._owner, self._closed = self._own_owner(), None, True
        if owner is not None:
            owner.close()

    def __enter__(self) -> Grader:
        """Return the grader itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the grader."""
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
        # After a fork, the parent's owner thread does not exist in the child.
        owner = self._owner
        return owner if owner is not None and owner.process == os.getpid() else None

    def _remember(self, key: _Key, done: Future[Verdict]) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        verdict = done.result()
        # Outcomes that depend on the machine, such as time-outs, are never cached.
        if verdict.correct is None or verdict.status in (Status.TIMEOUT, Status.MEMORY, Status.CRASHED):
            return
        with self._lock:
            # Leave out the seconds: a cached verdict costs no time.
            self._cache[key] = Verdict(
                correct=verdict.correct, status=verdict.status, method=verdict.method, flags=verdict.flags
            )
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)


_default: Grader | None = None
_default_lock = threading.Lock()


def default_grader() -> Grader:
    """Return the grader that the whole process shares."""
    global _default
    with _default_lock:
        if _default is None:
            _default = Grader()
        return _default
