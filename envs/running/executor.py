"""Run the tool calls of one turn: in order, within a deadline, with bounded output.

Invariant: there is one outcome per call, in the order of the calls, up to and including the first that failed.

Without a deadline, calls run one after another in the caller's thread. With a deadline they run in the executor's
threads, and adjacent calls of tools without state run concurrently. Python cannot stop a thread, so the result of a
late call is ignored. A late call of a tool with state is an infrastructure failure; for a late call of a tool without
state, the model gets an error. Run code that must be stopped at a deadline in ``turntree.envs.sandbox``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from threading import Event
from time import monotonic
from typing import Any

from turntree.envs.errors import EnvError, ToolError
from turntree.envs.running.containment import contain
from turntree.envs.running.worker_pool import WorkerPool

MAX_OUTPUT = 100_000


class ToolFailure(EnvError, TimeoutError):
    """A tool with state missed its deadline, or the executor had no free thread: an infrastructure failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A tool call, ready to run."""

    name: str
    run: Callable[[], str]
    shares_state: bool  #: whether the tool has state; then no other call of the episode may run at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a call."""

    text: str = ""  #: the result, shortened to the executor's limit; empty if there is an error
    error: Exception | None = None  #: raised by the tool; a ``ToolError`` is the model's fault
    late: bool = False  #: whether ``error`` means that the deadline passed

    @property
    def failed(self) -> bool:
        """Whether the infrastructure failed."""
        return self.error is not None and not isinstance(self.error, ToolError)


class ToolExecutor:
    """Runs tool calls for any number of environments, in any thread."""

    def __init__(
        self, *, seconds: float | None = None, max_output: int | None = MAX_OUTPUT, max_workers: int = 256
    ) -> None:
        """Set the limits.

        Args:
            seconds: Deadline of one call, counted from its submission; ``None`` means no deadline.
            max_output: Maximum characters of a result. In a longer result, a mark replaces the middle; ``None`` means
                no limit.
            max_workers: Maximum number of threads.

        Raises:
            ValueError: If a limit is not positive.
        """
        for name, bound in (("seconds", seconds), ("max_output", max_output), ("max_workers", max_workers)):
            if bound is not None and not bound > 0:
                raise ValueError(f"ToolExecutor.{name} must be positive, got {bound!r}")
        self.seconds = seconds
        self.max_output = max_output
        self.max_workers = max_workers

    def run(self, jobs: Sequence[Job], *, seconds: float | None = None) -> list[Outcome]:
        """Run the calls of one turn.

        Args:
            seconds: Time left for the episode; a second deadline for every call.

        Returns:
            Outcomes in the order of the calls. After a failed call, outcomes of later calls may be missing.
        """
        if self.seconds is None and seconds is None:
            return self._in_order(jobs, lambda job: self._outcome(job.run))
        end = None if seconds is None else monotonic() + seconds
        outcomes: list[Outcome] = []
        # Adjacent calls without state run concurrently. A call with state runs alone, after all earlier calls.
        for shares_state, group in itertools.groupby(jobs, key=lambda job: job.shares_state):
            if shares_state:
                outcomes += self._in_order(list(group), lambda job: self._together([job], end)[0])
            else:
                outcomes += self._together(list(group), end)
            if outcomes[-1].failed:
                break
        return outcomes

    def close(self) -> None:
        """Release the threads without waiting for late calls."""
        if "_pool" in vars(self):
            self._pool.shutdown(wait=False, cancel_futures=True)
            del self._pool

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self.seconds, self.max_output, self.max_workers)

    @cached_property
    def _pool(self) -> WorkerPool:
        return WorkerPool(self.max_workers)

    def _in_order(self, jobs: Sequence[Job], run: Callable[[Job], Outcome]) -> list[Outcome]:
        outcomes = []
        for job in jobs:
            outcomes.append(run(job))
            if outcomes[-1].failed:
                break
        return outcomes

    def _together(self, jobs: Sequence[Job], end: float | None) -> list[Outcome]:
        now = monotonic()
        deadline = min(now + self.seconds if self.seconds is not None else float("inf"), end or float("inf"))
        started = [Event() for _ in jobs]
        futures = [self._pool.submit(self._begin, job, event) for job, event in zip(jobs, started, strict=True)]
        return [
            self._wait(job, future, event, now, deadline)
            for job, future, event in zip(jobs, futures, started, strict=True)
        ]

    def _begin(self, job: Job, started: Event) -> Outcome:
        started.set()
        return self._outcome(job.run)

    def _wait(self, job: Job, future: Future[Outcome], started: Event, submitted: float, deadline: float) -> Outcome:
        try:
            return future.result(timeout=max(0.0, deadline - monotonic()))
        except TimeoutError:
            self._pool.give_up(future)
        # The call never started because no thread was free: an infrastructure failure, not a slow tool.
        if not started.is_set():
            busy = f"all {self.max_workers} threads were busy until the deadline of tool {job.name!r}"
            return Outcome(error=ToolFailure(f"{busy}; raise max_workers or seconds"), late=True)
        message = f"{job.name} took longer than {deadline - submitted:.3g} s and was abandoned"
        return Outcome(error=ToolFailure(message) if job.shares_state else ToolError(message), late=True)

    def _outcome(self, run: Callable[[], str]) -> Outcome:
        try:
            return Outcome(text=cut(contain(run), self.max_output))
        except Exception as error:  # the environment decides whether this is a failure
            return Outcome(error=error)


def cut(text: str, max_length: int | None) -> str:
    """Shorten a text to its beginning and its end, with a mark between them.

    Args:
        max_length: Characters to keep, not counting the mark; ``None`` keeps all.

    >>> cut("abcdefgh", 4)
    'ab\\n[... 4 characters left out ...]\\ngh'
    """
    if max_length is None or len(text) <= max_length:
        return text
    tail = max_length // 2
    head = max_length - tail
    return f"{text[:head]}\n[... {len(text) - max_length} characters left out ...]\n{text[len(text) - tail :]}"


def _make(seconds: float | None, max_output: int | None, max_workers: int) -> ToolExecutor:
    return ToolExecutor(seconds=seconds, max_output=max_output, max_workers=max_workers)
