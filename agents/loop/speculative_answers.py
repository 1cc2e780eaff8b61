"""Computes an environment's answers to later turns of an episode before these turns are sampled.

If an episode's turns and states so far equal the turns and states of a stored episode, the episode will probably
continue like the stored one. Forks are copies of the environment that start from snapshots of the stored episode. The
forks run the stored episode's later steps in parallel with the current step (``SpeculativeCalls``). A fork's answer is
used only for exactly the same turn in exactly the same state. A pure tool (its result depends only on its arguments) is
called without a fork, if the episode has made the same calls as a stored episode so far.

An environment that is not ``forkable`` runs all its steps itself, one turn after another, because a call may have
effects that cannot be undone.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

from turntree.agents.episodes.dialogue import canonical_call
from turntree.agents.loop.stored_episodes import StoredEpisode, StoredEpisodes, StoredStep, likely_calls, likely_steps
from turntree.agents.loop.tool_calls_ahead import Ask, SpeculativeCalls, same_state


class SpeculativeAnswers:
    """Answers the turns of one episode; without ``stored``, nothing is computed in advance."""

    def __init__(
        self, stored: StoredEpisodes | None, key: Hashable, env: Any, ask: Ask, calls: SpeculativeCalls
    ) -> None:
        self._stored = stored if calls.forks or calls.pure else None
        self._calls = calls
        self._key = key
        self._env = env
        self._ask = ask
        # Stored episodes whose steps so far equal the steps of this episode; their later steps are the predictions.
        self._forecasts = [] if self._stored is None else self._stored.of(key)
        self._forked_steps: dict[int, StoredStep] = {}  # steps that run in forks, by step number
        self._steps: list[StoredStep] = []
        self._snapshot = b""  # snapshot of the episode's current state
        self._current_fork: Any = None  # the fork in the current state; ``None`` if ``env`` itself is in that state

    def begin(self) -> None:
        """Start speculative calls for the state that the environment has just reached."""
        if self._stored is None:
            return
        position = len(self._steps)
        if not self._calls.forks:
            made = [call for step in self._steps for call in step.calls]
            for text in likely_calls(self._forecasts, made, self._calls.min_probability):
                self._calls.call(text)
            return
        self._snapshot = self._current_env.snapshot()
        self._forecasts = [steps for steps in self._forecasts if len(steps) > position]
        # Comparing snapshots may unpickle them, so compare each distinct snapshot only once.
        snapshots = {steps[position].before for steps in self._forecasts}
        same = {before: same_state(before, self._snapshot) for before in snapshots}
        self._forecasts = [steps for steps in self._forecasts if same[steps[position].before]]
        if position in self._forked_steps and not same.get(self._forked_steps[position].before):
            self._drop_forks(position)
        self._start_forks(position)

    async def answer(self, text: str) -> tuple[Any, ...]:
        if self._stored is not None and self._calls.forks:
            position = len(self._steps)
            self._forecasts = [steps for steps in self._forecasts if steps[position].text == text]
            if position in self._forked_steps and self._forked_steps[position].text != text:
                self._drop_forks(position + 1)
            self._start_forks(position + 1)
        try:
            answer = await self._answer(text)
        finally:
            self._calls.close_turn()
        if self._stored is not None:
            calls = tuple(map(canonical_call, answer[4]["tool_calls"]))
            self._steps.append(StoredStep(text, self._snapshot, json.dumps(answer[4]["messages"]), calls))
            if not (answer[2] or answer[3]):
                self.begin()
        return answer

    async def _answer(self, text: str) -> tuple[Any, ...]:
        speculative = await self._calls.answer(text, self._current_env)
        if speculative is None:
            self._catch_up()
            return await self._ask(self._env, text)
        if self._current_fork is not None:
            self._calls.release(self._current_fork)
        self._current_fork, answer = speculative
        return answer

    @property
    def _current_env(self) -> Any:
        return self._env if self._current_fork is None else self._current_fork

    def store(self) -> None:
        if self._stored is not None and len(self._steps) > 1:
            self._stored.add(self._key, tuple(self._steps))

    async def give_up(self) -> None:
        """Cancel all speculative work, and bring the environment to the episode's current state."""
        try:
            self._catch_up()
        finally:
            await self._calls.close()

    def _start_forks(self, position: int) -> None:
        for later, step in enumerate(self._likely_steps(position), position):
            self._calls.fork(later, step.text, step.before)
            self._forked_steps[later] = step

    def _drop_forks(self, position: int) -> None:
        self._calls.drop(position)
        self._forked_steps = {number: step for number, step in self._forked_steps.items() if number < position}

    def _likely_steps(self, position: int) -> StoredEpisode:
        if self._calls.bounded:
            return likely_steps(self._forecasts, position, self._calls.min_probability)
        # Before the first turn: if the stored episodes begin with different turns, none of them is a prediction.
        if not position and len({steps[0].text for steps in self._forecasts}) > 1:
            return ()
        return self._forecasts[0][position:] if self._forecasts else ()

    def _catch_up(self) -> None:
        if self._current_fork is not None:
            self._env.restore(self._current_fork.snapshot())
            self._calls.release(self._current_fork)
            self._current_fork = None
