"""The episode loop: an environment, an engine and a renderer play an episode.

Invariant: the prompt of a turn begins with the prompt and the response of the
turn before.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from turntree.agents.engines.protocol import Completion, Engine, FinishReason, Sampling, TurnRequest
from turntree.agents.episodes.dialogue import dialogue_state
from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.agents.errors import EngineAborted
from turntree.agents.loop.episode_driver import EpisodeDriver
from turntree.agents.loop.foresight import Foresight
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.stored_episodes import StoredEpisode, StoredEpisodes, StoredStep
from turntree.envs.limits import Limits
from turntree.envs.task import Task


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
    stored: StoredEpisodes | None = None,
) -> Episode:
    """Play one episode.

    Args:
        env: A ``turntree.envs.Env``, or a Gymnasium wrapper around one; not shared with another episode meanwhile.
        engine: Samples the turns.
        renderer: Built on the tokenizer of the engine's model.
        limits: Bounds counted in tokens; ``None`` takes the environment's own. Turns and tool calls are
            bounded by the environment itself.
        task: The task to play. Without ``task`` and ``index`` the environment draws one.
        index: Number of the task in the environment, instead of ``task``.
        seed: Given to ``env.reset``.
        sampling: Sampling parameters. A turn has at most ``limits.max_turn_tokens`` tokens and what is left of
            the other bounds; ``sampling.max_tokens`` counts only where ``max_turn_tokens`` is ``None``. The stop
            tokens of the renderer are added. Each turn gets its own seed, derived from ``sampling.seed``
            (else from ``seed``) and the turn's number: samples of one task differ only if one of the two
            does. Without either the noise is fresh.
        executor: Where ``env.reset`` and ``env.step`` run; ``None`` runs them in the event loop if the
            environment declares itself ``quick``, and in threads of the process otherwise.
        stored: Earlier episodes of environments made with the same arguments: one that begins in the same state
            is tried whole, its turns and tool calls side by side (``Foresight``), and this one is added. What an
            episode says and is answered does not depend on it.

    Returns:
        The episode. If the environment or the engine raised, its ``stop_reason`` is ``FAILURE``, ``failure``
        states the error, and the turns before it are kept.

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
        stored=stored,
    )
    return await play.to_end(play.run(index))


def derive_seed(*parts: int) -> int:
    """A seed in [0, 2**63) that depends on ``parts`` and their order alone.

    >>> derive_seed(0, 1) == derive_seed(0, 1) != derive_seed(1, 0)
    True
    """
    digest = hashlib.blake2b(",".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(slots=True, kw_only=True)
class _Play(EpisodeDriver):
    """An episode whose turns are sampled as tokens."""

    engine: Engine
    renderer: Renderer
    limits: Limits
    sampling: Sampling
    stored: StoredEpisodes | None

    async def run(self, index: int | None) -> StopReason:
        info = await self.begin(index)
        prompt = self.renderer.initial(info["messages"], info["tools"])
        key = (self.env_id, self.task_id, self.seed, self.limits, prompt)
        foresight = Foresight(self.stored, key, self.env, self.ask_env)
        try:
            foresight.begin(self.chance(-1), functools.partial(self.sample_ahead, len(prompt)))
            stop_reason = await self.turns_from(prompt, foresight)
        finally:
            await foresight.give_up()
        if stop_reason is not StopReason.FAILURE:
            foresight.store(self.tool_history, rank=self.chance(-2))
        return stop_reason

    async def turns_from(self, prompt: tuple[int, ...], foresight: Foresight) -> StopReason:
        first = len(prompt)
        while (room := self.room(first, len(prompt))) > 0:
            await foresight.reach(prompt)
            said = await self.sample(prompt, room, foresight)
            turn = Turn(prompt_ids=prompt, completion=said, text=self.text(said))
            outcome = await self.step(turn, foresight.answer(turn, len(self.tool_history)))
            if outcome.stop_reason is not None:
                return outcome.stop_reason
            prompt = self.renderer.extend(prompt, said.token_ids, outcome.messages)
        return StopReason.MAX_TOKENS

    def text(self, completion: Completion) -> str:
        special_tokens = getattr(self.env.unwrapped, "wants_special_tokens", False)
        return self.renderer.decode(completion.token_ids, special_tokens=special_tokens)

    def room(self, first: int, length: int) -> int:
        """Most tokens that the next turn may have after a prompt of ``length`` tokens, the first one ``first``."""
        limits = self.limits
        bounds = [limits.max_turn_tokens or self.sampling.max_tokens]
        if limits.max_episode_tokens is not None:
            bounds.append(limits.max_episode_tokens - (length - first))
        if limits.max_context_tokens is not None:
            bounds.append(limits.max_context_tokens - length)
        return min(bounds)

    def turn_seed(self, turn: int) -> int | None:
        """Seed of a turn's noise, by its number; ``None`` if the noise is fresh."""
        base = self.sampling.seed if self.sampling.seed is not None else self.seed
        return None if base is None else derive_seed(base, turn)

    def chance(self, which: int) -> int:
        """A random number that no turn's noise depends on; fresh where the noise is."""
        seed = self.turn_seed(which)
        return secrets.randbits(63) if seed is None else seed

    def request(
        self, turn: int, prompt: tuple[int, ...], room: int, calls: Sequence[str], draft: Sequence[int]
    ) -> TurnRequest:
        stops = (*self.renderer.stop_token_ids, *self.sampling.stop_token_ids)
        sampling = replace(
            self.sampling,
            max_tokens=room,
            stop_token_ids=tuple(dict.fromkeys(stops)),
            seed=self.turn_seed(turn),
        )
        state = dialogue_state(prompt, task_id=self.task_id, calls=calls, env_id=self.env_id)
        return TurnRequest(prompt, sampling, state=state, draft=draft)

    async def sample_ahead(self, first: int, turn: int, step: StoredStep, episode: StoredEpisode) -> Completion:
        calls = episode.tool_history[: step.calls]
        room = self.room(first, len(step.prompt_ids))
        return await self.engine.generate(self.request(turn, step.prompt_ids, room, calls, step.token_ids))

    async def sample(self, prompt: tuple[int, ...], room: int, foresight: Foresight) -> Completion:
        turn = len(self.turns)
        with self.engine_at_work():
            completion = await foresight.turn()
            if completion is None:
                request = self.request(turn, prompt, room, self.tool_history, foresight.guess)
                completion = await self.engine.generate(request)
            if completion.finish_reason is FinishReason.ABORT:
                raise EngineAborted(f"the engine aborted turn {turn}")
            if not completion.token_ids:
                raise EngineAborted(f"the engine sampled nothing in turn {turn}")
        return completion
