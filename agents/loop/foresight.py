"""An episode whose later turns and tool calls are asked for before the earlier ones are known to come true.

Where a stored episode begins in the same state, its later prompts are forecast, and
their turns are requested at once, each as it would be requested in its time: same
prompt, seed and limits. One is used only if the episode came to its prompt, token
for token, and then it is the very turn that would have been sampled; else nobody
sees it. What the environment answers is computed side by side likewise, in copies
that start from its snapshots, and used only after the very turn that was said.

An environment that is not ``forkable`` is itself asked, turn after turn: a call may
have effects that cannot be taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any

from turntree.agents.engines.protocol import Completion
from turntree.agents.episodes.episode import Turn
from turntree.agents.loop.stored_episodes import StoredEpisode, StoredEpisodes, StoredStep

Ask = Callable[[int, StoredStep, StoredEpisode], Coroutine[Any, Any, Completion]]
"""Samples the turn that follows the prompt of a step, whose number in its episode is given."""
Answer = Callable[[Any, str], Coroutine[Any, Any, tuple[Any, ...]]]
"""Steps an environment."""


class Foresight:
    """What is forecast of a running episode and already computed, and the record of what comes.

    Args:
        stored: Where the episode belongs; ``None`` forecasts and keeps nothing.
        key: As in ``StoredEpisodes.add``.
        env: The environment, just reset.
        answer: See ``Answer``.
    """

    def __init__(self, stored: StoredEpisodes | None, key: Hashable, env: Any, answer: Answer) -> None:
        self._stored = stored
        self._key = key
        self._env = env
        self._answer = answer
        self._forks_allowed = stored is not None and _forkable(env)
        self._forecast: StoredEpisode | None = None
        self._place = 0
        self._said: list[StoredStep] = []
        self._turns: dict[int, asyncio.Task[Completion]] = {}
        self._forks: dict[int, Any] = {}
        self._answers: dict[int, asyncio.Task[tuple[Any, ...]]] = {}
        self._behind: Any = None
        """The copy of the environment that is where the episode is; ``None`` while the environment itself is."""

    def begin(self, pick: int, ask: Ask) -> None:
        """Look for a stored episode, and ask for its turns.

        Args:
            pick: As in ``StoredEpisodes.take``.
            ask: See ``Ask``.
        """
        if self._stored is None:
            return
        self._forecast = self._stored.take(self._key, pick=pick)
        if self._forecast is None:
            return
        ahead = list(enumerate(self._forecast.steps[: self._stored.depth]))
        if len(ahead) == 1:
            return
        # The last prompt holds all others: an engine that computes it first has theirs in its cache.
        for place, step in reversed(ahead):
            self._turns[place] = asyncio.create_task(ask(place, step, self._forecast))
        for place, step in ahead:
            if step.before is not None:
                fork = self._forks[place] = self._env.fork(step.before)
                self._answers[place] = asyncio.create_task(self._answer(fork, step.text))

    async def reach(self, prompt: Sequence[int]) -> None:
        """The episode came to a prompt; a forecast of another one is given up."""
        if self._forecast is None:
            return
        steps = self._forecast.steps
        came_true = self._place < len(steps) and steps[self._place].prompt_ids == tuple(prompt)
        if self._place and self._stored is not None:
            self._stored.compare(came_true)
        if not came_true:
            self._forecast = None
            await self.give_up()

    @property
    def guess(self) -> Sequence[int]:
        """The turn of the forecast that is next, token ids; empty without one."""
        return () if self._forecast is None else self._forecast.steps[self._place].token_ids

    async def turn(self) -> Completion | None:
        """The next turn if it was asked for in advance."""
        task = self._turns.pop(self._place, None)
        return None if task is None else await task

    async def answer(self, turn: Turn, calls: int) -> tuple[Any, ...]:
        """What the environment answers to a turn that was said, before which there were so many tool calls."""
        said = turn.completion.token_ids
        env = self._env if self._behind is None else self._behind
        if self._stored is not None:
            before = env.snapshot() if self._forks_allowed else None
            self._said.append(StoredStep(turn.prompt_ids, said, turn.text, calls, before))
        place, self._place = self._place, self._place + 1
        task = self._answers.pop(place, None)
        if task is not None and self._forecast is not None and self._forecast.steps[place].token_ids == said:
            done: tuple[Any, ...] | BaseException = (await asyncio.gather(task, return_exceptions=True))[0]
            if not isinstance(done, BaseException) and not done[4]["failure"]:
                self._behind = self._forks[place]
                return done
        self._catch_up()
        return await self._answer(self._env, turn.text)

    def store(self, tool_history: Sequence[str], *, rank: int) -> None:
        """Keep the episode, which has ended.

        Args:
            tool_history: Its tool calls.
            rank: As in ``StoredEpisodes.add``.
        """
        if self._stored is not None:
            self._stored.add(self._key, StoredEpisode(tuple(self._said), tuple(tool_history)), rank=rank)

    def _catch_up(self) -> None:
        """Bring the environment to where the episode is."""
        if self._behind is not None:
            self._env.restore(self._behind.snapshot())
            self._behind = None

    async def give_up(self) -> None:
        """Cancel what is asked for in advance, and bring the environment to where the episode is."""
        tasks = [*self._turns.values(), *self._answers.values()]
        self._turns, self._answers = {}, {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._catch_up()


def _forkable(env: Any) -> bool:
    """Whether copies of ``env`` answer for it; of a quick one none is worth it, and a wrapper's state is its own."""
    return env is env.unwrapped and env.forkable and not env.quick and env.limits.max_seconds is None
