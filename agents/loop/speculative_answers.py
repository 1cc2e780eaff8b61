"""Answers of an environment to the later turns of an episode, computed before it is known that these will be sampled.

An episode whose turns and states so far are those of a stored one will probably go
on as that did. Forks of the environment, each set back to a snapshot of the stored
episode, take its later steps side by side with the present one (``SpeculativeCalls``). The answer of a fork
is used only for the very turn that was sampled, in the very state. Pure tools are called by themselves, for
an episode that has made the calls of stored ones until now.

An environment that is not ``forkable`` takes all steps itself, turn after turn: a
call may have effects that cannot be taken back.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

from turntree.agents.episodes.dialogue import canonical_call
from turntree.agents.loop.stored_episodes import StoredEpisode, StoredEpisodes, StoredStep, likely_calls, likely_steps
from turntree.agents.loop.tool_calls_ahead import Ask, SpeculativeCalls, same_state


class SpeculativeAnswers:
    """What an environment answers to the turns of one episode.

    Args:
        stored: Where the episode belongs; ``None`` makes nothing early, and keeps nothing.
    """

    def __init__(
        self, stored: StoredEpisodes | None, key: Hashable, env: Any, ask: Ask, calls: SpeculativeCalls
    ) -> None:
        self._stored = stored if calls.forks or calls.pure else None
        self._calls = calls
        self._key = key
        self._env = env
        self._ask = ask
        self._forecasts = [] if self._stored is None else self._stored.of(key)
        """Stored episodes that went as this one until now."""
        self._followed: dict[int, StoredStep] = {}
        """The steps that forks take, by number."""
        self._taken: list[StoredStep] = []
        self._before = b""
        """Snapshot of the environment where the episode is."""
        self._ahead: Any = None
        """The fork that is where the episode is; ``None`` while the environment itself is."""

    def begin(self) -> None:
        """The environment was reset: a state is reached, at which stored episodes tell what will come."""
        if self._stored is None:
            return
        place = len(self._taken)
        if not self._calls.forks:
            made = [call for step in self._taken for call in step.calls]
            for text in likely_calls(self._forecasts, made, self._calls.min_probability):
                self._calls.call(text)
            return
        self._before = self._here.snapshot()
        self._forecasts = [one for one in self._forecasts if len(one) > place]
        same = {before: same_state(before, self._before) for before in {one[place].before for one in self._forecasts}}
        self._forecasts = [one for one in self._forecasts if same[one[place].before]]
        if place in self._followed and not same.get(self._followed[place].before):
            self._drop(place)
        self._follow(place)

    async def answer(self, text: str) -> tuple[Any, ...]:
        """What the environment answers to a turn."""
        if self._stored is not None and self._calls.forks:
            place = len(self._taken)
            self._forecasts = [one for one in self._forecasts if one[place].text == text]
            if place in self._followed and self._followed[place].text != text:
                self._drop(place + 1)
            self._follow(place + 1)
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
        """The answer of a fork that took the turn, or of the environment itself."""
        made = await self._calls.answer(text, self._here)
        if made is None:
            self._catch_up()
            return await self._ask(self._env, text)
        if self._ahead is not None:
            self._calls.release(self._ahead)
        self._ahead, answer = made
        return answer

    @property
    def _here(self) -> Any:
        """The environment where the episode is."""
        return self._env if self._ahead is None else self._ahead

    def store(self) -> None:
        """Keep the episode, which has ended."""
        if self._stored is not None and len(self._taken) > 1:
            self._stored.add(self._key, tuple(self._taken))

    async def give_up(self) -> None:
        """Cancel what is computed early, and bring the environment to where the episode is."""
        try:
            self._catch_up()
        finally:
            await self._calls.close()

    def _follow(self, place: int) -> None:
        """Let forks take the steps from ``place`` on that will probably come, unless they do so already."""
        for later, step in enumerate(self._likely(place), place):
            self._calls.fork(later, step.text, step.before)
            self._followed[later] = step

    def _drop(self, place: int) -> None:
        self._calls.drop(place)
        self._followed = {number: step for number, step in self._followed.items() if number < place}

    def _likely(self, place: int) -> StoredEpisode:
        if self._calls.bounded:
            return likely_steps(self._forecasts, place, self._calls.min_probability)
        if not place and len({one[0].text for one in self._forecasts}) > 1:
            return ()
        return self._forecasts[0][place:] if self._forecasts else ()

    def _catch_up(self) -> None:
        """Bring the environment to where the episode is."""
        if self._ahead is not None:
            self._env.restore(self._ahead.snapshot())
            self._calls.release(self._ahead)
            self._ahead = None
