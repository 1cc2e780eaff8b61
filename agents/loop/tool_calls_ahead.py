"""Speculative tool calls: calls that run before the turn that makes them has been sampled.

Earlier episodes of the task predict the next turns, several turns ahead (``SpeculativeAnswers``). The predicted calls
run in forks (copies from a snapshot) of a ``forkable`` environment, one turn per fork. A ``pure`` tool, whose result
depends only on its arguments, needs no fork.

Invariant: a fork's result is used only if the sampled turn and the environment's state equal the predicted turn and
state, byte for byte. A pure tool's result is used only for an equal call. All other results are discarded.
"""

from __future__ import annotations

import asyncio
import io
import math
import pickle
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from turntree.envs import Env
from turntree.envs.running.containment import contain
from turntree.envs.running.pure_calls import PureCall

Answer = tuple[Any, ...]  #: the result of ``Env.step``
Ask = Callable[[Any, str], Coroutine[Any, Any, Answer]]  #: steps an environment
Submit = Callable[[Callable[[], Any]], Future[Any]]  #: runs a function in a thread
OffLoop = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]  #: runs a function where environments run
#: calls that each episode may waste, so that speculation is tried again now and then after many wrong predictions
_CREDIT_PER_EPISODE = 1 / 8


@dataclass(slots=True)
class Credit:
    """The number of speculative calls that may still be wasted."""

    # A call costs 1 credit when it starts, and returns 2 if it is used. So calls wasted <= calls used, apart from the
    # initial credit and the credit per episode.
    calls: float = 16.0


@dataclass(slots=True, kw_only=True)
class ToolCallsAhead:
    """Settings and counters of speculative tool calls, for any number of episodes."""

    min_probability: float = 0.5
    """Least estimated probability of a turn and all turns before it. Calls of less probable turns are not made."""
    credit: Credit = field(default_factory=Credit)
    """Credit for wasted calls; several ``ToolCallsAhead`` may share it."""
    made: int = 0  #: calls that started before their turn had ended
    used: int = 0  #: calls whose result was used
    wasted: int = 0  #: calls whose result was discarded
    saved_seconds: float = 0.0  #: time that used calls had already run when their turn ended


class _Fork(NamedTuple):
    env: Any
    text: str
    before: bytes  #: snapshot of the environment before the turn
    calls: int
    started: float
    work: Future[tuple[Answer, float]]  #: the answer, and the time when it was ready
    step: asyncio.Future[tuple[Answer, float]]  #: ``work`` in the event loop


class SpeculativeCalls:
    """The speculative calls of one episode; if ``calls`` is ``None``, all predicted calls run, but only in forks."""

    def __init__(self, calls: ToolCallsAhead | None, env: Any, submit: Submit, off_loop: OffLoop) -> None:
        self._env, self._submit, self._off_loop = env, submit, off_loop
        self._base = base = env.unwrapped
        self._calls = calls or ToolCallsAhead(credit=Credit(math.inf))
        self.bounded = calls is not None  # whether to run only calls that are probable enough
        self.forks = is_forkable(env)
        # With a limit in seconds, the time saved by speculative calls would allow more turns and change the episode.
        unforked = self.bounded and not self.forks and isinstance(base, Env) and base.limits.max_seconds is None
        slow = unforked and not base.step_inline  # steps run in threads, so a step takes long enough to be worth it
        self.pure = slow and any(tool.pure for tool in base.offered_tools)
        self._turn = 0
        self._forks: defaultdict[int, list[_Fork]] = defaultdict(list)  # by the number of the turn that they run
        self._pure_calls: list[tuple[PureCall, asyncio.Task[Any]]] = []
        self._dropped: list[asyncio.Future[Any]] = []

    @property
    def min_probability(self) -> float:
        return self._calls.min_probability

    def fork(self, turn: int, text: str, before: bytes) -> None:
        """Start a turn's calls in a fork that starts from the snapshot ``before``."""
        calls = len(self._base.parser.parse(text).calls)
        price = max(1, calls)  # a turn without calls also costs a step
        if any(fork.text == text for fork in self._forks[turn]) or self._calls.credit.calls < price:
            return
        env, started = self._env.fork(before), monotonic()
        work = self._submit(partial(_timed_step, env, text))
        self._forks[turn].append(_Fork(env, text, before, calls, started, work, asyncio.wrap_future(work)))
        self._calls.made += calls
        self._calls.credit.calls -= price

    def call(self, text: str) -> None:
        """Start the pure calls of a turn that will probably come in this episode."""
        calls = self._base.tool_calls_ahead(text)
        calls = calls[: int(min(len(calls), max(0.0, self._calls.credit.calls)))]
        self._pure_calls += [(call, asyncio.create_task(self._off_loop(call))) for call in calls]
        self._calls.made += len(calls)
        self._calls.credit.calls -= len(calls)

    async def answer(self, text: str, here: Any) -> tuple[Any, Answer] | None:
        """Return the fork that ran the turn ``text``, and its answer; ``None`` if no fork did.

        The caller releases the fork.
        """
        forks = self._forks.pop(self._turn, [])
        matches = (fork for fork in forks if fork.text == text and same_state(fork.before, here.snapshot()))
        fork, requested, result = next(matches, None), monotonic(), None
        try:
            if fork is not None:
                timeout = max(0.0, fork.started + self._base.step_seconds - requested)
                await asyncio.wait([fork.step], timeout=timeout if math.isfinite(timeout) else None)
                done = fork.step.done() and not fork.step.cancelled() and fork.step.exception() is None
                # A call that failed in the fork may succeed if it runs again, so its answer is not used.
                if done and not fork.step.result()[0][4]["failure"]:
                    answer, ended = fork.step.result()
                    result = fork.env, answer
                    self._count_used(fork.calls, min(requested, ended) - fork.started)
        finally:
            self._discard([other for other in forks if result is None or other is not fork])
        return result

    def release(self, env: Any) -> None:
        """End the episode of a fork that is no longer needed."""
        self._dropped.append(asyncio.ensure_future(self._off_loop(env.close_episode)))

    def drop(self, turn: int) -> None:
        for later in [number for number in self._forks if number >= turn]:
            self._discard(self._forks.pop(later))

    def close_turn(self) -> None:
        """End a turn: count the pure calls that the turn has used."""
        self._turn += 1
        self._close_calls(last=False)

    async def close(self) -> None:
        """End the episode: discard all calls that were not used."""
        self.drop(0)
        self._close_calls(last=True)
        self._calls.credit.calls += _CREDIT_PER_EPISODE
        await asyncio.gather(*self._dropped, return_exceptions=True)

    def _close_calls(self, *, last: bool) -> None:
        waiting = []
        for call, work in self._pure_calls:
            if call.used_at is not None:
                self._count_used(1, max(0.0, min(call.used_at, call.ended) - call.begun))
            elif not last:
                waiting.append((call, work))
            elif call.forget():  # the call never started, because no thread was free
                work.cancel()
                self._calls.made -= 1
                self._calls.credit.calls += 1
            else:
                self._calls.wasted += 1
        self._pure_calls = waiting

    def _count_used(self, calls: int, seconds: float) -> None:
        self._calls.used += calls
        self._calls.credit.calls += 2 * max(1, calls)
        self._calls.saved_seconds += seconds if calls else 0.0

    def _discard(self, forks: Sequence[_Fork]) -> None:
        for fork in forks:
            fork.step.cancel()
            self._dropped.append(fork.step)
            self._calls.wasted += fork.calls
            if fork.work.done():
                self.release(fork.env)
            else:  # the fork's call is still running, so close the fork afterwards
                fork.work.add_done_callback(partial(_close_after, fork.env))


def _timed_step(env: Any, text: str) -> tuple[Answer, float]:
    return env.step(text), monotonic()


def _close_after(env: Any, work: Future[Any]) -> None:
    contain(env.close_episode)


def same_state(before: bytes, here: bytes) -> bool:
    """Return whether two snapshots show the same state, byte for byte.

    A pickle also shows whether equal strings are one object or several. This difference is ignored.
    """
    return before == here or _by_value(before) == _by_value(here)


def _by_value(snapshot: bytes) -> bytes:
    file = io.BytesIO()
    _TextsByValue(file).dump(pickle.loads(snapshot))
    return file.getvalue()


class _TextsByValue(pickle.Pickler):
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._texts: dict[str, str] = {}

    def persistent_id(self, value: Any) -> str | None:
        return self._texts.setdefault(value, value) if type(value) is str else None


def is_forkable(env: Any) -> bool:
    """Return whether forks of ``env`` can answer for it."""
    # A wrapper may have its own state, which a fork would lack. If steps are fast, a fork costs more than it saves.
    unwrapped = env is env.unwrapped and isinstance(env, Env)
    return bool(unwrapped and env.forkable and not env.step_inline and env.limits.max_seconds is None)
