"""The episode loop: play an episode with an environment, an engine and a renderer.

Invariant: a turn's prompt begins with the prompt and response of the previous turn, unless the environment has
shortened the dialogue.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from turntree.agents.engines.protocol import Completion, Engine, FinishReason, Sampling, TurnRequest, derive_seed
from turntree.agents.episodes.dialogue import dialogue_state
from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.agents.errors import EngineAborted
from turntree.agents.loop.episode_driver import EpisodeDriver
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.speculative_answers import SpeculativeAnswers
from turntree.agents.loop.stored_episodes import StoredEpisodes
from turntree.agents.loop.thinking_budget import within_budget
from turntree.agents.loop.tool_calls_ahead import SpeculativeCalls, ToolCallsAhead
from turntree.agents.loop.tool_format import follow_template, opening
from turntree.envs.limits import Limits
from turntree.envs.task import Task


@runtime_checkable
class PlaysItself(Protocol):
    """An environment that plays its episodes itself, such as a program that requests turns from the engine."""

    limits: Limits

    async def play_episode(
        self,
        engine: Engine,
        renderer: Renderer,
        limits: Limits,
        *,
        task: Task | int | None,
        seed: int | None,
        sampling: Sampling,
        executor: Executor | None,
    ) -> Episode:
        """Play one episode like ``rollout``; ``task`` may also be the task's index."""


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
    tool_calls_ahead: ToolCallsAhead | None = None,
) -> Episode:
    """Play one episode.

    Args:
        env: A ``turntree.envs.Env``, or a Gymnasium wrapper around one. Concurrent episodes must not share ``env``.
        renderer: Built on the tokenizer of the engine's model.
        limits: Token limits; ``None`` takes the environment's own. The environment itself limits turns and tool calls.
        task: The task to play. Without ``task`` and ``index`` the environment draws one.
        index: Index of the task in the environment, instead of ``task``.
        seed: Passed to ``env.reset``.
        sampling: Sampling parameters. The limits bound each turn's tokens; ``sampling.max_tokens`` is used only if
            ``limits.max_turn_tokens`` is ``None``. The renderer's stop tokens are added. Each turn's seed is derived
            from ``sampling.seed`` (or else ``seed``) and the turn's number, so samples of one task need different
            seeds. Without any seed, each turn gets fresh noise.
        executor: Runs ``env.reset`` and ``env.step``. ``None`` runs them in the event loop if the environment is
            ``step_inline``, otherwise in threads of the process.
        stored: Earlier episodes of environments created with the same arguments. While this episode repeats a stored
            episode, the stored episode's later tool calls run speculatively in copies of a ``forkable`` environment
            (``SpeculativeAnswers``). The finished episode is added to ``stored``. The answers that the policy sees do
            not depend on ``stored``.
        tool_calls_ahead: Limits speculative tool calls to probable calls, and counts the calls. If the environment is
            not forkable, only pure tools are called (``loop.tool_calls_ahead``). The answers do not depend on this.

    Returns:
        The episode. If the environment or the engine raised, ``stop_reason`` is ``FAILURE``, ``failure`` is the error,
        and the turns before the error are kept.

    Raises:
        ValueError: If both ``task`` and ``index`` are given, or ``tool_calls_ahead`` without ``stored``.
    """
    if task is not None and index is not None:
        raise ValueError(f"give task or index, not both; got task {task.id!r} and index {index}")
    if tool_calls_ahead is not None and stored is None:
        raise ValueError(
            "tool_calls_ahead needs earlier episodes to predict calls, got none; pass stored=StoredEpisodes() too"
        )
    if isinstance(player := env.unwrapped, PlaysItself):
        return await player.play_episode(
            engine,
            renderer,
            limits or player.limits,
            task=index if task is None else task,
            seed=seed,
            sampling=sampling or Sampling(),
            executor=executor,
        )
    play = _Play(
        env=env,
        engine=within_budget(engine, renderer),
        renderer=renderer,
        limits=limits or env.unwrapped.limits,
        task=task,
        seed=seed,
        sampling=sampling or Sampling(),
        executor=executor,
        stored=stored,
        tool_calls_ahead=tool_calls_ahead,
    )
    return await play.to_end(play.run(index))


@dataclass(slots=True, kw_only=True)
class _Play(EpisodeDriver):
    engine: Engine
    renderer: Renderer
    limits: Limits
    sampling: Sampling
    stored: StoredEpisodes | None
    tool_calls_ahead: ToolCallsAhead | None

    async def run(self, index: int | None) -> StopReason:
        follow_template(self.env, self.renderer)
        info = await self.begin(index)
        prompt = opening(self.env, self.renderer, info["messages"], info["tools"])
        key = (self.env_id, self.task_id, self.seed, self.limits)
        calls = SpeculativeCalls(self.tool_calls_ahead, self.env, self.submit, self.off_loop)
        answers = SpeculativeAnswers(self.stored, key, self.env, self.ask_env, calls)
        try:
            answers.begin()
            stop_reason = await self.turns_from(prompt, answers, info["tools"])
        finally:
            await answers.give_up()
        if stop_reason is not StopReason.FAILURE:  # answers of an environment that failed would predict failures
            answers.store()
        return stop_reason

    async def turns_from(self, prompt: tuple[int, ...], answers: SpeculativeAnswers, tools: list[Any]) -> StopReason:
        first, shortened = len(prompt), False
        while (token_limit := self.token_limit(first, len(prompt))) > 0:
            completion = await self.sample(prompt, token_limit)
            turn = Turn(
                prompt_ids=prompt, completion=completion, text=self.text(completion.token_ids), shortened=shortened
            )
            outcome = await self.step(turn, answers.answer(turn.text))
            if outcome.stop_reason is not None:
                return outcome.stop_reason
            shortened = bool(outcome.history)
            if shortened:
                prompt = opening(self.env, self.renderer, outcome.history, tools)
                first = len(prompt)
            else:
                prompt = self.renderer.extend(prompt, completion.token_ids, outcome.messages)
        return StopReason.MAX_TOKENS

    def text(self, token_ids: Sequence[int]) -> str:
        special_tokens = getattr(self.env.unwrapped, "wants_special_tokens", False)
        return self.renderer.turn_text(token_ids, special_tokens=special_tokens)

    def token_limit(self, first: int, length: int) -> int:
        # ``length``: tokens of the turn's prompt; ``first``: tokens of the dialogue's first prompt.
        limits = self.limits
        bounds = [limits.max_turn_tokens or self.sampling.max_tokens]
        if limits.max_episode_tokens is not None:
            bounds.append(limits.max_episode_tokens - (length - first))
        if limits.max_context_tokens is not None:
            bounds.append(limits.max_context_tokens - length)
        return min(bounds)

    def turn_seed(self, turn: int) -> int | None:
        base = self.sampling.seed if self.sampling.seed is not None else self.seed
        return None if base is None else derive_seed(base, turn)

    async def sample(self, prompt: tuple[int, ...], token_limit: int) -> Completion:
        turn = len(self.turns)
        stops = (*self.renderer.stop_token_ids, *self.sampling.stop_token_ids)
        sampling = replace(
            self.sampling, max_tokens=token_limit, stop_token_ids=tuple(dict.fromkeys(stops)), seed=self.turn_seed(turn)
        )
        state = dialogue_state(prompt, task_id=self.task_id, calls=self.tool_history, env_id=self.env_id)
        with self.engine_at_work():
            completion = await self.engine.generate(TurnRequest(prompt, sampling, state=state))
            if completion.finish_reason is FinishReason.ABORT:
                raise EngineAborted(f"the engine aborted turn {turn}")
            if not completion.token_ids:
                raise EngineAborted(f"the engine sampled nothing in turn {turn}")
        return completion
