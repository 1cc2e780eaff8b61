"""Evaluation: play many tasks and aggregate the results.

Invariant: an episode that failed or could not be graded is counted as failed or ungraded, never as right or wrong.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import nan, sqrt
from typing import Any, NamedTuple

from turntree.agents.engines.chat_server import ChatServer
from turntree.agents.engines.engine_choice import ToolCalls
from turntree.agents.engines.protocol import Engine, FinishReason, Sampling, derive_seed
from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.evaluation.environments import env_after
from turntree.agents.loop.chat_rollout import chat_rollout
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.scoring.judging import judge_episodes
from turntree.agents.scoring.scorer import Scorer
from turntree.envs.limits import Limits
from turntree.envs.running.containment import contain

_Z95 = 1.959964  #: two-sided 95 % quantile of the standard normal distribution


class Sampled(NamedTuple):
    """Identify one episode of an evaluation."""

    task: int
    sample: int  #: from 0
    episode: Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """How tasks are played."""

    model: str = ""
    """Model name to record."""
    limits: Limits | None = None
    """Token limits, as in ``rollout``."""
    sampling: Sampling | None = None
    """Sampling parameters, as in ``rollout``; the seed is replaced by one derived from ``seed``."""
    seed: int = 0
    """An episode's seed is derived from this seed and the task's index, so that tasks get independent noise."""
    concurrency: int = 16
    """Episodes played at once."""
    samples: int = 1
    """Episodes per task; they share the initial state and differ in their sampling seeds."""
    scorer: Scorer | None = None
    """Computes the rewards instead of the environment, for all samples of a task at once."""
    tool_calls: ToolCalls = ToolCalls.NATIVE
    """Whether the server or the environment parses tool calls; used only with a chat server."""


async def evaluate(
    make_env: Callable[[], Any],
    engine: Engine | ChatServer,
    renderer: Renderer | None,
    indices: Iterable[int],
    playing: Playing = Playing(),
    *,
    done: Mapping[tuple[int, int], Episode] | None = None,
    on_episode: Callable[[Sampled], None] | None = None,
    **settings: Any,
) -> list[Episode]:
    """Play the tasks ``indices``, several at once.

    Args:
        make_env: Creates an environment; called at most ``concurrency`` times, and after each timeout.
        engine: Samples the turns; a chat server returns them as text.
        renderer: Renderer with the tokenizer of the engine's model; ``None`` for a chat server.
        done: Finished episodes by task and sample, which are not played again. With a scorer, only tasks whose samples
            are all finished count.
        on_episode: Called with each finished episode; with a scorer, when all samples of its task are finished.
        **settings: Fields of ``Playing`` that override ``playing``.

    Returns:
        The episodes in the order of ``indices``, with the samples of a task next to each other.

    Raises:
        TypeError: If ``Playing`` has no such field.
        ValueError: If ``renderer`` is missing for an engine.
    """
    playing = replace(playing, **settings)
    play_one: Callable[..., Awaitable[Episode]]
    if isinstance(engine, ChatServer):
        play_one = partial(chat_rollout, server=engine, tool_calls=playing.tool_calls)
    elif renderer is not None:
        play_one = partial(rollout, engine=engine, renderer=renderer)
    else:
        raise ValueError("expected a Renderer with the tokenizer of the engine's model, got None")
    samples = range(playing.samples)
    order = [(index, sample) for index in indices for sample in samples]
    run = _Run(make_env=make_env, play_one=play_one, playing=playing, order=order, on_episode=on_episode)
    for position, (index, sample) in enumerate(order):
        needed = [(index, sample)] if playing.scorer is None else [(index, other) for other in samples]
        if done and all(key in done for key in needed):
            run.ended[position] = done[index, sample]
    # The workers share one iterator, so each worker takes the next episode that has not been played.
    remaining = [position for position in range(len(order)) if position not in run.ended]
    positions = iter(remaining)
    async with asyncio.TaskGroup() as group:
        for _ in range(min(playing.concurrency, len(remaining))):
            group.create_task(run.work(contain(make_env), positions))
    return [run.ended[position] for position in range(len(order))]


@dataclass(slots=True, kw_only=True)
class _Run:
    make_env: Callable[[], Any]
    play_one: Callable[..., Awaitable[Episode]]
    playing: Playing
    order: list[tuple[int, int]]  #: (task, sample) by position
    on_episode: Callable[[Sampled], None] | None
    ended: dict[int, Episode] = field(default_factory=dict)  #: by position
    groups: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))  #: task -> positions that ended

    async def work(self, env: Any, positions: Iterator[int]) -> None:
        playing = self.playing
        for position in positions:
            index, sample = self.order[position]
            seed, sampling = derive_seed(playing.seed, index), playing.sampling
            if sample:
                sampling = replace(sampling or Sampling(), seed=sampling_seed(playing.seed, index, sample))
            episode = await self.play_one(env, limits=playing.limits, index=index, seed=seed, sampling=sampling)
            self.ended[position] = episode
            env = env_after(episode, env, self.make_env)
            await self._report(position)
        contain(env.close)

    async def _report(self, position: int) -> None:
        finished, scorer, samples = [position], self.playing.scorer, self.playing.samples
        if scorer is not None:
            # Rewards may compare the samples of a task, so they are computed once all have ended.
            (group := self.groups[position // samples]).append(position)
            if len(group) < samples:
                return
            finished = sorted(group)
            scored = await judge_episodes([self.ended[other] for other in finished], scorer)
            self.ended.update(zip(finished, scored, strict=True))
        if self.on_episode is not None:
            for other in finished:
                self.on_episode(Sampled(*self.order[other], self.ended[other]))


def sampling_seed(seed: int, task: int, sample: int) -> int:
    """Return the seed of a sample; the seeds of its turns are derived from it."""
    task_seed = derive_seed(seed, task)
    return task_seed if sample == 0 else derive_seed(task_seed, sample)


def solved(episode: Episode) -> bool:
    """Return whether the ``correct`` component, or else the reward, is 1."""
    return episode.rewards.get("correct", episode.reward) >= 1.0


class Estimate(NamedTuple):
    """A mean with its confidence interval."""

    value: float  #: NaN without tasks
    low: float  #: lower end of the 95 % interval
    high: float
    tasks: int


def wilson_interval(successes: int, trials: int) -> Estimate:
    """Return a success rate with Wilson's 95 % interval (1927), which is accurate near 0 and 1.

    >>> _, low, high, _ = wilson_interval(0, 20)
    >>> f"{low:.3f} {high:.3f}"
    '0.000 0.161'
    """
    if trials == 0:
        return Estimate(nan, 0.0, 1.0, 0)
    rate, square = successes / trials, _Z95**2
    middle = (rate + square / (2 * trials)) / (1 + square / trials)
    half = _Z95 * sqrt(rate * (1 - rate) / trials + square / (4 * trials**2)) / (1 + square / trials)
    return Estimate(rate, max(0.0, middle - half), min(1.0, middle + half), trials)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Totals over episodes. Masked episodes count only in ``failures``, ``ungraded`` and ``stop_reasons``."""

    scored: int  #: episodes with a grade
    solved: int  #: scored episodes that are right
    failures: int  #: failed episodes; masked
    ungraded: int  #: episodes whose answer could not be graded; masked
    reward: float  #: sum of the rewards
    turns: int  #: turns of the policy
    tokens: int  #: sampled tokens, as far as known
    verify_steps: int  #: forward passes that sampled tokens (each verifies a draft, if any); 0 if unknown
    prompt_tokens: int  #: prompt tokens of all turns
    cached_tokens: int  #: prompt tokens served from the KV cache
    stop_reasons: dict[str, int]  #: episodes per stop reason, most frequent first
    cut_turns: int = 0  #: turns truncated by a token limit
    text_turns: int = 0  #: turns known only as text; their tokens are not counted

    @classmethod
    def of(cls, episodes: Sequence[Episode]) -> Evaluation:
        """Aggregate ``episodes``."""
        scored = [episode for episode in episodes if not episode.masked]
        turns = [turn for episode in scored for turn in episode.turns]
        return cls(
            scored=len(scored),
            solved=sum(map(solved, scored)),
            failures=sum(episode.stop_reason is StopReason.FAILURE for episode in episodes),
            ungraded=sum(bool(episode.ungraded) for episode in episodes),
            reward=sum(episode.reward for episode in scored),
            turns=len(turns),
            tokens=sum(len(turn.completion.token_ids) for turn in turns),
            verify_steps=sum(turn.completion.draft.verify_steps for turn in turns),
            prompt_tokens=sum(len(turn.prompt_ids) for turn in turns),
            cached_tokens=sum(turn.completion.cached_tokens for turn in turns),
            stop_reasons=dict(Counter(str(episode.stop_reason) for episode in episodes).most_common()),
            cut_turns=sum(turn.completion.finish_reason is FinishReason.LENGTH for turn in turns),
            text_turns=sum(turn.text_only for turn in turns),
        )

    @property
    def accuracy(self) -> float:
        """Return the fraction of scored episodes that are right; NaN without scored episodes."""
        return self.interval.value

    @property
    def interval(self) -> Estimate:
        """Return the accuracy with its 95 % interval."""
        return wilson_interval(self.solved, self.scored)

    @property
    def tokens_per_forward_pass(self) -> float:
        """Return sampled tokens per forward pass; NaN if the engine does not count passes."""
        return self.tokens / self.verify_steps if self.verify_steps else nan

    def per_episode(self, total: float) -> float:
        """Return ``total`` per scored episode; NaN without scored episodes."""
        return total / self.scored if self.scored else nan
