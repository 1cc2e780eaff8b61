"""Tool calls made while the turn that makes them is still being sampled.

The engine tells how the turn will probably end (``TurnRequest.foresee``): from its store of
drafts, or a guess of the pipeline. Its calls are then made in a fork of a ``forkable``
environment, which takes the turn, or, where a tool is ``pure``, by themselves.

Invariant: what was made is used only if the sampled turn (of a pure tool, the call) and the
state of the environment are the same, byte for byte; else it is thrown away. A tool that is
neither pure nor of a forkable environment never runs ahead.

Which engines tell: the local engine in each of its steps, with ``speculation``; every engine at
the begin of a turn that has a guess (replay, run-ahead, coupled validation), behind
``guesses.pipeline``. Others tell nothing, and every call waits for its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any, NamedTuple

from turntree.agents.engines.protocol import Foresee
from turntree.envs import Env
from turntree.envs.running.pure_calls import PureCall

logger = logging.getLogger(__name__)

Answer = tuple[Any, ...]
"""The result of ``Env.step``."""
Ask = Callable[[Any, str], Coroutine[Any, Any, Answer]]
"""Steps an environment."""
OffLoop = Callable[[Callable[[], Any]], Coroutine[Any, Any, Any]]
"""Runs a function where environments run."""


@dataclass(slots=True, kw_only=True)
class CallsAhead:
    """That calls are made ahead, from which probability on, and what came of it; for any number of episodes."""

    min_probability: float = 0.5
    """Estimated probability of the whole turn from which on its calls are made."""
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
    step: asyncio.Task[tuple[Answer, float]]
    """The answer, and when it came."""


class EarlyCalls:
    """The calls of one episode's turns; see the module's docstring.

    Args:
        calls: Settings and counters; ``None`` makes none early.
        env: The environment, just reset.
        ask: Steps an environment.
        off_loop: As ``OffLoop``.
        text: Text of a turn's tokens.
    """

    def __init__(
        self,
        calls: CallsAhead | None,
        env: Any,
        ask: Ask,
        off_loop: OffLoop,
        text: Callable[[Sequence[int]], str],
    ) -> None:
        self._env, self._ask, self._off_loop, self._text = env, ask, off_loop, text
        self._own = own = env.unwrapped
        self._calls: CallsAhead | None = None
        self._forks = False
        if calls is not None and isinstance(own, Env) and not own.quick:
            self._forks = is_forkable(env)
            pure = any(tool.pure for tool in own.offered_tools)
            self._calls = calls if self._forks or pure else None
        self._turn = 0
        self._told = ""
        self._fork: _Fork | None = None
        self._pure: list[PureCall] = []
        self._work: list[asyncio.Task[Any]] = []

    def foresee(self, here: Any) -> Foresee | None:
        """What the next turn's request wants to foresee; ``here`` is the environment where the episode is."""
        if self._calls is None:
            return None
        turn, loop = self._turn, asyncio.get_running_loop()

        def told(tokens: Sequence[int]) -> None:
            if turn == self._turn:
                try:
                    self._begin(self._text(tokens), here)
                except Exception:  # the turn itself will show what is wrong, if it comes
                    logger.debug("calls of %s could not be made ahead", type(here).__name__, exc_info=True)

        def tell(tokens: tuple[int, ...]) -> None:
            loop.call_soon_threadsafe(told, tokens)

        return Foresee(min_probability=self._calls.min_probability, tell=tell)

    async def answer(self, text: str, here: Any) -> tuple[Any, Answer] | None:
        """The fork that took the turn ``text``, and its answer; ``None`` if no fork did."""
        self._turn += 1  # what is told of it from now on comes too late
        fork = self._fork
        if self._calls is None or fork is None or fork.text != text or not same_state(fork.before, here):
            return None
        wanted = monotonic()
        made = (await asyncio.gather(fork.step, return_exceptions=True))[0]
        if isinstance(made, BaseException) or made[0][4]["failure"]:  # it may succeed now
            return None
        answer, ended = made
        self._calls.used += fork.calls
        self._calls.saved_seconds += min(wanted, ended) - fork.begun
        self._fork = None
        return fork.env, answer

    def close_turn(self) -> None:
        """The turn is answered, or never will be: count what was made for it, and throw away what did not come."""
        self._turn += 1
        self._told = ""
        self._drop_fork()
        for work in self._work:
            work.cancel()
        for call in self._pure:
            assert self._calls is not None
            if call.used_at is None:
                self._calls.wasted += 1
            else:
                self._calls.used += 1
                self._calls.saved_seconds += max(0.0, min(call.used_at, call.ended) - call.begun)
        self._pure, self._work = [], []

    def _begin(self, text: str, here: Any) -> None:
        """Make the calls of a turn that will probably be sampled."""
        parsed = self._own.parser.parse(text)
        if self._calls is None or text == self._told or parsed.error or not parsed.calls:
            return
        self._told = text
        if self._forks:
            self._drop_fork()
            env, begun = self._env.fork(before := here.snapshot()), monotonic()
            self._fork = _Fork(env, text, before, len(parsed.calls), begun, asyncio.create_task(self._timed(env, text)))
            self._calls.made += len(parsed.calls)
        else:
            made = self._own.calls_ahead(text)
            self._pure += made
            self._work += [asyncio.create_task(self._off_loop(call)) for call in made]
            self._calls.made += len(made)

    def _drop_fork(self) -> None:
        if self._fork is not None and self._calls is not None:
            self._fork.step.cancel()
            self._calls.wasted += self._fork.calls
        self._fork = None

    async def _timed(self, env: Any, text: str) -> tuple[Answer, float]:
        return await self._ask(env, text), monotonic()


def same_state(before: bytes, env: Any) -> bool:
    """Whether ``env`` is where it was when its snapshot ``before`` was taken."""
    return bool(before == env.snapshot())


def is_forkable(env: Any) -> bool:
    """Whether copies of ``env`` answer for it; of a quick one none is worth it, and a wrapper's state is its own."""
    return env is env.unwrapped and env.forkable and not env.quick and env.limits.max_seconds is None
