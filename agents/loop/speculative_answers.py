"""Computes an environment's answers to later turns of an episode before these turns are sampled.

An episode whose turns and states so far equal those of a stored one will probably continue like it. Forks of the
environment, each set to a snapshot of the stored episode, take its later steps in parallel with the present one
(``SpeculativeCalls``). A fork's answer is used only for exactly the sampled turn in exactly the same state. Pure tools
are called without a fork, if the episode has made the same calls as a stored one so far.

An environment that is not ``forkable`` takes all steps itself, turn after turn: a call may have effects that cannot
be undone.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

from turntree.agents.episodes.dialogue import canonical_call
from turntree.agents.loop.stored_episodes import StoredEpisode, StoredEpisodes, StoredStep, likely_calls, likely_steps
from turntree.agents.loop.tool_calls_ahead import Ask, SpeculativeCalls, same_state


class SpeculativeAnswers:
    """Answers the turns of one episode; without ``stored`` nothing is computed ahead."""

    def __init__(
        self, stored: StoredEpisodes | None, key: Hashable, env: Any, ask: Ask, calls: SpeculativeCalls
    ) -> None:
        self._stored = stored if calls.forks or calls.pure else None
        self._calls = calls
        self._key = key
        self._env = env
        self._ask = ask
        # Stored episodes that equal this episode so far.
        self._forecasts = [] if self._stored is None else self._stored.of(key)
        self._followed: dict[int, StoredStep] = {}  # steps that forks take, by number
        self._taken: list[StoredStep] = []
        self._before = b""  # snapshot of the environment in the episode's state
        self._ahead: Any = None  # the fork in the episode's state; ``None`` if the environment itself is in it

    def begin(self) -> None:
        """Start speculative calls for the state that the environment has just reached."""
        if self._stored is None:
            return
        position = len(self._taken)
        if not self._calls.forks:
            made = [call for step in self._taken for call in step.calls]
            for text in likely_calls(self._forecasts, made, self._calls.min_probability):
                self._calls.call(text)
            return
        self._before = self._here.snapshot()
        self._forecasts = [steps for steps in self._forecasts if len(steps) > position]
        # Comparing snapshots may unpickle them, so equal ones are compared once.
        snapshots = {steps[position].before for steps in self._forecasts}
        same = {before: same_state(before, self._before) for before in snapshots}
        self._forecasts = [steps for steps in self._forecasts if same[steps[position].before]]
        if position in self._followed and not same.get(self._followed[position].before):
            self._drop(position)
        self._follow(position)

    async def answer(self, text: str) -> tuple[Any, ...]:
        if self._stored is not None and self._calls.forks:
            position = len(self._taken)
            self._forecasts = [steps for steps in self._forecasts if steps[position].text == text]
            if position in self._followed and self._followed[position].text != text:
                self._drop(position + 1)
            self._follow(position + 1)
        try:
            answer = await self._answer(text)
        finally:
            self._calls.close_turn()
        if self._stored is not None:
            calls = tuple(map(canonical_call, answer[4]["tool_calls"]))
            self._taken.append(StoredStep(text, self._before, json.dumps(answer[4]["messages"]), calls))
            if not (answer[2] or answer[3]):
                self.begin()
        return answer

    async def _answer(self, text: str) -> tuple[Any, ...]:
        speculative = await self._calls.answer(text, self._here)
        if speculative is None:
            self._catch_up()
            return await self._ask(self._env, text)
        if self._ahead is not None:
            self._calls.release(self._ahead)
        self._ahead, answer = speculative
        return answer

    @property
    def _here(self) -> Any:
        return self._env if self._ahead is None else self._ahead

    def store(self) -> None:
        if self._stored is not None and len(self._taken) > 1:
            self._stored.add(self._key, tuple(self._taken))

    async def give_up(self) -> None:
        """Cancel all speculative work, and bring the environment to the episode's state."""
        try:
            self._catch_up()
        finally:
            await self._calls.close()

    def _follow(self, position: int) -> None:
        for later, step in enumerate(self._likely(position), position):
            self._calls.fork(later, step.text, step.before)
            self._followed[later] = step

    def _drop(self, position: int) -> None:
        self._calls.drop(position)
        self._followed = {number: step for number, step in self._followed.items() if number < position}

    def _likely(self, position: int) -> StoredEpisode:
        if self._calls.bounded:
            return likely_steps(self._forecasts, position, self._calls.min_probability)
        # Before the first turn, stored episodes that begin differently predict nothing.
        if not position and len({steps[0].text for steps in self._forecasts}) > 1:
            return ()
        return self._forecasts[0][position:] if self._forecasts else ()

    def _catch_up(self) -> None:
        if self._ahead is not None:
            self._env.restore(self._ahead.snapshot())
            self._calls.release(self._ahead)
            self._ahead = None
