"""The one loop of the project: an environment, an engine and a renderer make an episode.

Invariant: the prompt of a turn begins with the prompt and the response of the
turn before. This is also the one boundary where a failure of the surroundings
becomes ``Episode.failure``; it never becomes a reward.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from turntree.agents.dialogue import canonical_call, dialogue_state
from turntree.agents.engines.protocol import Completion, Engine, FinishReason, Sampling
from turntree.agents.episode import Episode, StopReason, Turn
from turntree.agents.errors import EngineAborted
from turntree.agents.renderer import Renderer
from turntree.envs.limits import Limits
from turntree.envs.message import Message, Role
from turntree.envs.task import Task

logger = logging.getLogger(__name__)

_T = TypeVar("_T")


async def rollout(
    env: Any,
    engine: Engine,
    renderer: Renderer,
    limits: Limits | None = None,
    *,
    task: Task | None = None,
    index: int | None = None,
    seed: int | None = None,
    sampling: Sampling | None = None,
    executor: Executor | None = None,
) -> Episode:
    """Play one episode.

    Args:
        env: A ``turntree.envs.Env``, or a Gymnasium wrapper around one; used by nobody else meanwhile.
        engine: Samples the turns.
        renderer: Built on the tokenizer of the engine's model.
        limits: Bounds counted in tokens; ``None`` takes the environment's own. Turns and tool calls are
            bounded by the environment itself.
        task: The task to play. Without ``task`` and ``index`` the environment draws one.
        index: Number of the task in the environment, instead of ``task``.
        seed: Given to ``env.reset``.
        sampling: How tokens are drawn. ``limits.max_turn_tokens`` and what is left of the other bounds say
            how many; ``sampling.max_tokens`` counts only where ``max_turn_tokens`` is ``None``. The stop
            tokens of the renderer are added. Each turn gets its own seed, derived from ``sampling.seed``
            (else from ``seed``) and the turn's number: samples of one task differ only if one of the two
            does. Without either the noise is fresh.
        executor: Where ``env.reset`` and ``env.step`` run; ``None`` runs them in the event loop, which is
            best for environments that answer in microseconds.

    Returns:
        The episode. If the environment or the engine raised, its ``stop_reason`` is ``FAILURE``, ``failure``
        says what, and the turns before it are kept.

    Raises:
        ValueError: If both ``task`` and ``index`` are given.
    """
    if task is not None and index is not None:
        raise ValueError(f"give task or index, not both; got task {task.id!r} and index {index}")
    play = _Play(
        env=env,
        engine=engine,
        renderer=renderer,
        limits=limits or env.unwrapped.limits,
        task=task,
        seed=seed,
        sampling=sampling or Sampling(),
        executor=executor,
    )
    try:
        stop_reason = await play.run(index)
    except Exception as error:
        logger.warning("an episode of %s failed", play.env_id, exc_info=True)
        stop_reason, play.failure = StopReason.FAILURE, describe(error)
    return play.episode(stop_reason)


def derive_seed(*parts: int) -> int:
    """A seed in [0, 2**63) that depends on ``parts`` and their order alone.

    >>> derive_seed(0, 1) == derive_seed(0, 1) != derive_seed(1, 0)
    True
    """
    digest = hashlib.blake2b(",".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def env_id_of(env: Any) -> str:
    """Id of an environment: the registered one, or the name of its class."""
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(env.unwrapped).__name__


def describe(error: BaseException) -> str:
    """``error`` in one line, its class first.

    >>> describe(ValueError("no such\\n  city"))
    'ValueError: no such city'
    """
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


@dataclass(slots=True, kw_only=True)
class _Play:
    """An episode that is being played."""

    env: Any
    engine: Engine
    renderer: Renderer
    limits: Limits
    task: Task | None
    seed: int | None
    sampling: Sampling
    executor: Executor | None
    task_id: str = ""
    tool_history: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    rewards: dict[str, float] = field(default_factory=dict)
    failure: str = ""

    @property
    def env_id(self) -> str:
        return env_id_of(self.env)

    async def run(self, index: int | None) -> StopReason:
        prompt = await self.reset(index)
        first = len(prompt)
        while (room := self.room(first, len(prompt))) > 0:
            completion = await self.sample(prompt, room)
            stop_reason, observation = await self.step(prompt, completion)
            if stop_reason is not None:
                return stop_reason
            prompt = self.renderer.extend(prompt, completion.token_ids, observation)
        return StopReason.MAX_TOKENS

    async def reset(self, index: int | None) -> tuple[int, ...]:
        """The first prompt."""
        options: dict[str, Any] | None = None
        if self.task is not None:
            options = {"task": self.task}
        elif index is not None:
            options = {"index": index}
        _, info = await self.off_loop(functools.partial(self.env.reset, seed=self.seed, options=options))
        self.task_id = info["task_id"]
        if self.task is None:
            self.task = self.env.unwrapped.current_task
        self.messages += map(Message.from_openai, info["messages"])
        return self.renderer.initial(info["messages"], info["tools"])

    def room(self, first: int, length: int) -> int:
        """Tokens that the next turn may have after a prompt of ``length`` tokens, the first one ``first``."""
        limits = self.limits
        bounds = [limits.max_turn_tokens or self.sampling.max_tokens]
        if limits.max_episode_tokens is not None:
            bounds.append(limits.max_episode_tokens - (length - first))
        if limits.max_context_tokens is not None:
            bounds.append(limits.max_context_tokens - length)
        return min(bounds)

    async def sample(self, prompt: tuple[int, ...], room: int) -> Completion:
        base = self.sampling.seed if self.sampling.seed is not None else self.seed
        stops = (*self.renderer.stop_token_ids, *self.sampling.stop_token_ids)
        sampling = replace(
            self.sampling,
            max_tokens=room,
            stop_token_ids=tuple(dict.fromkeys(stops)),
            seed=None if base is None else derive_seed(base, len(self.turns)),
        )
        state = dialogue_state(prompt, task_id=self.task_id, calls=self.tool_history, env_id=self.env_id)
        completion = await self.engine.generate(prompt, sampling, state=state)
        if completion.finish_reason is FinishReason.ABORT:
            raise EngineAborted(f"the engine aborted turn {len(self.turns)}")
        if not completion.token_ids:
            raise EngineAborted(f"the engine sampled nothing in turn {len(self.turns)}")
        return completion

    async def step(
        self, prompt: tuple[int, ...], completion: Completion
    ) -> tuple[StopReason | None, Sequence[Mapping[str, Any]]]:
        """Give the turn to the environment: why it ended the episode, if it did, and what it said."""
        special_tokens = getattr(self.env.unwrapped, "wants_special_tokens", False)
        text = self.renderer.decode(completion.token_ids, special_tokens=special_tokens)
        turn = Turn(prompt_ids=prompt, completion=completion, text=text)
        said = Message(role=Role.ASSISTANT, content=text)
        self.turns.append(turn)
        self.messages.append(said)
        _, reward, terminated, truncated, info = await self.off_loop(functools.partial(self.env.step, text))
        calls = info["tool_calls"]
        observation = tuple(map(Message.from_openai, info["messages"]))
        self.turns[-1] = replace(turn, observation=observation, reward=float(reward))
        if calls:
            parsed = Message.from_openai({"role": "assistant", "content": text, "tool_calls": calls})
            self.messages[-1] = parsed
            self.tool_history += map(canonical_call, calls)
        self.messages += observation
        self.rewards = {name: float(value) for name, value in info["rewards"].items()}
        self.failure = info["failure"]
        if not (terminated or truncated):
            return None, info["messages"]
        # A Gymnasium wrapper (TimeLimit) may truncate an episode that the environment would go on with.
        return StopReason(info["stop_reason"] or StopReason.MAX_TURNS), info["messages"]

    async def off_loop(self, call: Callable[[], _T]) -> _T:
        if self.executor is None:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self.executor, call)

    def episode(self, stop_reason: StopReason) -> Episode:
        return Episode(
            env_id=self.env_id,
            task=self.task,
            seed=self.seed,
            messages=tuple(self.messages),
            turns=tuple(self.turns),
            stop_reason=stop_reason,
            rewards=self.rewards,
            failure=self.failure if stop_reason is StopReason.FAILURE else "",
        )
