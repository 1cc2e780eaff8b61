"""Tool calls made before the turn that makes them has been sampled.

Earlier episodes of the task tell the turns that follow a state (``SpeculativeAnswers``), as soon as the state is reached and
several turns ahead. Their calls are then made in forks of a ``forkable`` environment, each of which takes one turn, or,
where a tool is ``pure``, by themselves.

Invariant: what was made is used only if the sampled turn (of a pure tool, the call) and the
state of the environment are the same, byte for byte; else it is thrown away. A tool that is
neither pure nor of a forkable environment never runs ahead.
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

Answer = tuple[Any, ...]
"""The result of ``Env.step``."""
Ask = Callable[[Any, str], Coroutine[Any, Any, Answer]]
"""Steps an environment."""
Submit = Callable[[Callable[[], Any]], Future[Any]]
"""Has a thread run a function."""
OffLoop = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]
"""Runs a function where environments run."""
_CREDIT_PER_EPISODE = 1 / 8
"""Calls; so forecasts that were wrong are tried again now and then."""


@dataclass(slots=True)
class Credit:
    """How many calls may still be made that do not come. One that is used pays for itself and one more: so at most as
    many are thrown away as are used, the first credit and that of each episode apart."""

    calls: float = 16.0


@dataclass(slots=True, kw_only=True)
class ToolCallsAhead:
    """That calls are made ahead, from which probability on, and what came of it; for any number of episodes."""

    min_probability: float = 0.5
    """Estimated probability of the whole turn, and of those before it, from which on its calls are made."""
    credit: Credit = field(default_factory=Credit)
    """May be shared with others."""
    made: int = 0
    """Calls made before their turn had ended."""
    used: int = 0
    """Those whose result was used."""
    wasted: int = 0
    """Those that were thrown away."""
    saved_seconds: float = 0.0
    """Time that the used ones had run when their turn had ended."""


class _Fork(NamedTuple):
    """A fork that takes a turn which will probably be sampled."""

    env: Any
    text: str
    before: bytes
    """Snapshot of the environment before the turn."""
    calls: int
    begun: float
    work: Future[tuple[Answer, float]]
    """The answer, and when it came."""
    step: asyncio.Future[tuple[Answer, float]]
    """The same in the event loop."""


class SpeculativeCalls:
    """The calls of one episode's turns; see the module's docstring.

    Args:
        calls: Settings and counters; ``None`` makes them in forks alone, and without bound.
    """

    def __init__(self, calls: ToolCallsAhead | None, env: Any, submit: Submit, off_loop: OffLoop) -> None:
        self._env, self._submit, self._off_loop = env, submit, off_loop
        self._own = own = env.unwrapped
        self._calls = calls or ToolCallsAhead(credit=Credit(math.inf))
        self.bounded = calls is not None
        """Whether only what is probable enough is made."""
        self.forks = is_forkable(env)
        """Whether forks of the environment take turns."""
        # Of bounded seconds, those that calls ahead save would be left for more turns.
        apart = self.bounded and not self.forks and isinstance(own, Env) and own.limits.max_seconds is None
        slow = apart and not own.step_inline
        self.pure = slow and any(tool.pure for tool in own.offered_tools)
        """Whether pure tools are called by themselves."""
        self._turn = 0
        self._forks: defaultdict[int, list[_Fork]] = defaultdict(list)
        """By the number of the turn that they take."""
        self._made: list[tuple[PureCall, asyncio.Task[Any]]] = []
        self._dropped: list[asyncio.Future[Any]] = []

    @property
    def min_probability(self) -> float:
        """As in ``ToolCallsAhead``."""
        return self._calls.min_probability

    def fork(self, turn: int, text: str, before: bytes) -> None:
        """Let a fork take a turn.

        Args:
            before: The environment's probable snapshot before it.
        """
        calls = len(self._own.parser.parse(text).calls)
        price = max(1, calls)  # a turn without calls costs a step, too
        if any(fork.text == text for fork in self._forks[turn]) or self._calls.credit.calls < price:
            return
        env, begun = self._env.fork(before), monotonic()
        work = self._submit(partial(_timed_step, env, text))
        self._forks[turn].append(_Fork(env, text, before, calls, begun, work, asyncio.wrap_future(work)))
        self._calls.made += calls
        self._calls.credit.calls -= price

    def call(self, text: str) -> None:
        """Make the calls of pure tools in a turn that will probably come, next or later in the episode."""
        made = self._own.tool_calls_ahead(text)
        made = made[: int(min(len(made), max(0.0, self._calls.credit.calls)))]
        self._made += [(call, asyncio.create_task(self._off_loop(call))) for call in made]
        self._calls.made += len(made)
        self._calls.credit.calls -= len(made)

    async def answer(self, text: str, here: Any) -> tuple[Any, Answer] | None:
        """The fork that took the turn ``text``, to be released later, and its answer; ``None`` if no fork did."""
        forks = self._forks.pop(self._turn, [])
        fits = (one for one in forks if one.text == text and same_state(one.before, here.snapshot()))
        fork, wanted, found = next(fits, None), monotonic(), None
        try:
            if fork is not None:
                left = max(0.0, fork.begun + self._own.step_seconds - wanted)
                await asyncio.wait([fork.step], timeout=left if math.isfinite(left) else None)
                came = fork.step.done() and not fork.step.cancelled() and fork.step.exception() is None
                if came and not fork.step.result()[0][4]["failure"]:  # else it may succeed now
                    answer, ended = fork.step.result()
                    found = fork.env, answer
                    self._use(fork.calls, min(wanted, ended) - fork.begun)
        finally:
            self._throw_away([one for one in forks if found is None or one is not fork])
        return found

    def release(self, env: Any) -> None:
        """End the episode of a fork that is needed no more."""
        self._dropped.append(asyncio.ensure_future(self._off_loop(env.close_episode)))

    def drop(self, turn: int) -> None:
        """Throw away what takes the turns from number ``turn`` on."""
        for later in [number for number in self._forks if number >= turn]:
            self._throw_away(self._forks.pop(later))

    def close_turn(self) -> None:
        """The turn is answered: count the pure calls that it made."""
        self._turn += 1
        self._close_calls(last=False)

    async def close(self) -> None:
        """The episode has ended: throw away what did not come."""
        self.drop(0)
        self._close_calls(last=True)
        self._calls.credit.calls += _CREDIT_PER_EPISODE
        await asyncio.gather(*self._dropped, return_exceptions=True)

    def _close_calls(self, *, last: bool) -> None:
        waiting = []
        for call, work in self._made:
            if call.used_at is not None:
                self._use(1, max(0.0, min(call.used_at, call.ended) - call.begun))
            elif not last:
                waiting.append((call, work))
            elif call.forget():  # no thread was free for it
                work.cancel()
                self._calls.made -= 1
                self._calls.credit.calls += 1
            else:
                self._calls.wasted += 1
        self._made = waiting

    def _use(self, calls: int, seconds: float) -> None:
        self._calls.used += calls
        self._calls.credit.calls += 2 * max(1, calls)
        self._calls.saved_seconds += seconds if calls else 0.0

    def _throw_away(self, forks: Sequence[_Fork]) -> None:
        for fork in forks:
            fork.step.cancel()
            self._dropped.append(fork.step)
            self._calls.wasted += fork.calls
            if fork.work.done():
                self.release(fork.env)
            else:  # its thread still uses it
                fork.work.add_done_callback(partial(_close_after, fork.env))


def _timed_step(env: Any, text: str) -> tuple[Answer, float]:
    return env.step(text), monotonic()


def _close_after(env: Any, work: Future[Any]) -> None:
    contain(env.close_episode)


def same_state(before: bytes, here: bytes) -> bool:
    """Whether two snapshots are of the same state, byte for byte.

    Equal texts may be one object or several, which a pickle shows and nothing else does: they count as one.
    """
    return before == here or _by_value(before) == _by_value(here)


def _by_value(snapshot: bytes) -> bytes:
    file = io.BytesIO()
    _TextsByValue(file).dump(pickle.loads(snapshot))
    return file.getvalue()


class _TextsByValue(pickle.Pickler):
    """Writes equal texts as one."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._texts: dict[str, str] = {}

    def persistent_id(self, value: Any) -> str | None:
        return self._texts.setdefault(value, value) if type(value) is str else None


def is_forkable(env: Any) -> bool:
    """Whether copies of ``env`` answer for it; of a quick one none is worth it, and a wrapper's state is its own."""
    own = env is env.unwrapped and isinstance(env, Env)
    return bool(own and env.forkable and not env.step_inline and env.limits.max_seconds is None)
