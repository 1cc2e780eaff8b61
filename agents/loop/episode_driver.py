"""Calls an episode's environment: passes actions, records observations and the reason why the episode ended.

Both loops, ``rollout`` on tokens and ``chat_rollout`` on messages, call the environment through this module. Only this
module turns an infrastructure failure into ``Episode.failure``; a failure never becomes a reward. Ctrl-C and the
cancellation of the episode's own task are raised unchanged.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import math
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from turntree.agents.episodes.dialogue import canonical_call
from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.envs.failure import FailureKind, describe, kind_of
from turntree.envs.message import Message, Role
from turntree.envs.running.containment import contain, contained
from turntree.envs.running.worker_pool import WorkerPool
from turntree.envs.task import Task

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
MAX_BLOCKED = 1024  #: environments of one process that may block at the same time; further environments wait


class StepOutcome(NamedTuple):
    stop_reason: StopReason | None  #: why the turn ended the episode; ``None`` if it did not
    messages: Sequence[Mapping[str, Any]]  #: the observation, as OpenAI messages
    calls: Sequence[Mapping[str, Any]]  #: tool calls that the environment parsed from the turn, as OpenAI dictionaries
    #: if the environment shortened the dialogue: the messages that replace the dialogue so far; otherwise empty
    history: Sequence[Mapping[str, Any]] = ()


@dataclass(slots=True, kw_only=True)
class EpisodeDriver:
    env: Any
    task: Task | None
    seed: int | None
    executor: Executor | None = None
    task_id: str = ""
    tool_history: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    failure: str = ""
    #: the component that is being called; if an exception is raised, the failure is put down to this component
    failure_kind: FailureKind = FailureKind.ENVIRONMENT
    raised_in: str = ""  #: the method of the environment that raised, if the error does not name it

    @property
    def env_id(self) -> str:
        return env_id_of(self.env)

    async def to_end(self, run: Awaitable[StopReason]) -> Episode:
        """Return the episode that ``run`` plays; an exception becomes the episode's failure."""
        try:
            stop_reason = await run
        except (asyncio.CancelledError, GeneratorExit):  # of this task; ``contain`` catches those of the environment
            raise
        except BaseException as raised:
            error = contained(raised)
            logger.warning("an episode of %s failed", self.env_id, exc_info=True)
            method = f"{self.raised_in} raised " if self.raised_in else ""
            stop_reason, self.failure = StopReason.FAILURE, method + describe(error)
            self.failure_kind = kind_of(error, self.failure_kind)
        failed = stop_reason is StopReason.FAILURE
        return Episode(
            env_id=self.env_id,
            task=self.task,
            seed=self.seed,
            messages=tuple(self.messages),
            turns=tuple(self.turns),
            stop_reason=stop_reason,
            rewards=self.rewards,
            failure=self.failure if failed else "",
            failure_kind=self.failure_kind if failed else None,
        )

    async def begin(self, index: int | None) -> dict[str, Any]:
        options: dict[str, Any] | None = None
        if self.task is not None:
            options = {"task": self.task}
        elif index is not None:
            options = {"index": index}
        reset = functools.partial(self.env.reset, seed=self.seed, options=options)
        self.raised_in = "reset()"
        _, info = await self._in_time(reset, lambda: "reset()")
        self.raised_in = ""  # after an exception, this line is skipped and the name is kept
        self.task_id = info["task_id"]
        if self.task is None:
            self.task = self.env.unwrapped.current_task
        self.messages += map(Message.from_openai, info["messages"])
        return dict(info)

    async def step(self, turn: Turn, answer: Awaitable[tuple[Any, ...]] | None = None) -> StepOutcome:
        """Pass the turn to the environment and record the outcome; ``answer`` replaces the environment's answer."""
        message = Message(role=Role.ASSISTANT, content=turn.text)
        self.turns.append(turn)
        self.messages.append(message)
        _, reward, terminated, truncated, info = await (answer or self.ask_env(self.env, turn.text))
        calls = info["tool_calls"]
        observation = tuple(map(Message.from_openai, info["messages"]))
        # Only turntree's own environments set the key ``parse_error``.
        error = str(info.get("parse_error") or "")
        self.turns[-1] = replace(turn, observation=observation, reward=float(reward), parse_error=error)
        if calls:
            parsed = Message.from_openai({"role": "assistant", "content": turn.text, "tool_calls": calls})
            self.messages[-1] = parsed
            self.tool_history += map(canonical_call, calls)
        self.messages += observation
        self.rewards = {name: float(value) for name, value in info["rewards"].items()}
        if info["failure"]:
            self.failure, self.failure_kind = info["failure"], FailureKind(info["failure_kind"])
        if not (terminated or truncated):
            return StepOutcome(None, info["messages"], calls, info.get("history", ()))
        # A Gymnasium wrapper (TimeLimit) may truncate an episode that the environment would continue.
        return StepOutcome(StopReason(info["stop_reason"] or StopReason.MAX_TURNS), info["messages"], calls)

    async def ask_env(self, env: Any, text: str) -> tuple[Any, ...]:
        base = self.env.unwrapped
        step = functools.partial(env.step, text)
        return await self._in_time(step, lambda: getattr(base, "step_part", "") or "step()")

    @contextmanager
    def engine_at_work(self) -> Iterator[None]:
        """Count an exception raised in this context as a failure of the engine."""
        self.failure_kind = FailureKind.ENGINE
        yield
        self.failure_kind = FailureKind.ENVIRONMENT  # after an exception, this line is skipped and the kind is kept

    async def _in_time(self, call: Callable[[], _T], doing: Callable[[], str]) -> _T:
        if self._on_loop:
            return contain(call)
        base = self.env.unwrapped
        seconds = getattr(base, "step_seconds", math.inf)
        work = self.submit(call)
        try:
            async with asyncio.timeout(seconds if math.isfinite(seconds) else None) as bound:
                return await asyncio.wrap_future(work)
        except (asyncio.CancelledError, TimeoutError) as error:
            if isinstance(error, TimeoutError) and not bound.expired():  # raised by the environment
                raise
            self.raised_in = doing()
            # The call may still run in its thread, so the environment is closed only after the call returns.
            work.add_done_callback(lambda _: contain(getattr(base, "close_episode", base.close)))
            if not bound.expired():
                raise
        if isinstance(pool := self.executor or _threads(os.getpid()), WorkerPool):
            pool.give_up(work)  # a hung call must not occupy one of the pool's slots forever
        raise TimeoutError(f"it did not end within step_seconds, {seconds:g} s")

    async def off_loop(self, call: Callable[[], _T]) -> _T:
        """Run ``call`` where the environment runs and return its result; raise only ``Exception``."""
        return contain(call) if self._on_loop else await asyncio.wrap_future(self.submit(call))

    def submit(self, call: Callable[[], _T]) -> Future[_T]:
        """Run ``call`` in a thread; the future raises only ``Exception``."""
        in_context = functools.partial(contextvars.copy_context().run, contain, call)
        return (self.executor or _threads(os.getpid())).submit(in_context)

    @property
    def _on_loop(self) -> bool:
        return self.executor is None and bool(getattr(self.env.unwrapped, "step_inline", False))


@functools.cache
def _threads(process: int) -> WorkerPool:
    # Cached by process id, because a forked process needs its own threads.
    return WorkerPool(MAX_BLOCKED)


def env_id_of(env: Any) -> str:
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(env.unwrapped).__name__
