"""Answers of an environment to the later turns of an episode, computed before it is known that these will be sampled.

An episode whose turns and answers so far are those of a stored one will probably go
on as that did. Copies of the environment, each set back to a snapshot of the stored
episode, take its later steps side by side with the present one. The answer of a copy
is used only for the very turn that was sampled, and only as long as every answer before
it was the stored one.

An environment that is not ``forkable`` takes all steps itself, turn after turn: a
call may have effects that cannot be taken back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from turntree.agents.engines.protocol import Foresee
from turntree.agents.loop.calls_ahead import EarlyCalls, is_forkable
from turntree.agents.loop.stored_episodes import StoredEpisode, StoredEpisodes, StoredStep

Ask = Callable[[Any, str], Coroutine[Any, Any, tuple[Any, ...]]]
"""Steps an environment."""


class _Copy(NamedTuple):
    """A copy of the environment that takes one step."""

    env: Any
    step: asyncio.Task[tuple[Any, ...]]


class EarlyAnswers:
    """What an environment answers to the turns of one episode.

    Args:
        stored: Where the episode belongs; ``None`` computes and keeps nothing early.
        key: As in ``StoredEpisodes.add``.
        env: The environment, just reset.
        ask: See ``Ask``.
        calls: Makes the present turn's calls while it is sampled.
    """

    def __init__(self, stored: StoredEpisodes | None, key: Hashable, env: Any, ask: Ask, calls: EarlyCalls) -> None:
        self._stored = stored if stored is not None and is_forkable(env) else None
        self._calls = calls
        self._key = key
        self._env = env
        self._ask = ask
        self._forecasts = [] if self._stored is None else self._stored.of(key)
        """Stored episodes that went as this one until now."""
        self._followed: StoredEpisode | None = None
        self._copies: dict[int, _Copy] = {}
        self._said: list[StoredStep] = []
        self._ahead: Any = None
        """The copy that is where the episode is; ``None`` while the environment itself is."""

    async def begin(self) -> None:
        """Before the first turn: it is foreseen if it was the same in all stored episodes."""
        if len({one[0].text for one in self._forecasts}) == 1:
            await self._follow(-1)

    async def answer(self, text: str) -> tuple[Any, ...]:
        """What the environment answers to a turn."""
        try:
            return await (self._now(text) if self._stored is None else self._foreseen(text))
        finally:
            self._calls.close_turn()

    def foresee(self) -> Foresee | None:
        """What the next turn's request wants to foresee."""
        copied = len(self._said) in self._copies  # a copy takes the turn already
        return None if copied else self._calls.foresee(self._here)

    async def _foreseen(self, text: str) -> tuple[Any, ...]:
        place = len(self._said)
        before = self._here.snapshot()
        self._forecasts = [one for one in self._forecasts if len(one) > place and one[place].text == text]
        await self._follow(place)
        answer = await self._early_answer(place) or await self._now(text)
        messages = answer[4]["messages"]
        self._said.append(StoredStep(text, before, messages))
        self._forecasts = [one for one in self._forecasts if _same(one[place].answer, messages)]
        return answer

    async def _now(self, text: str) -> tuple[Any, ...]:
        """The answer of a fork that took the turn while it was sampled, or of the environment itself."""
        made = await self._calls.answer(text, self._here)
        if made is None:
            self._catch_up()
            return await self._ask(self._env, text)
        self._ahead, answer = made
        return answer

    @property
    def _here(self) -> Any:
        """The environment where the episode is."""
        return self._env if self._ahead is None else self._ahead

    def store(self) -> None:
        """Keep the episode, which has ended."""
        if self._stored is not None and len(self._said) > 1:
            self._stored.add(self._key, tuple(self._said))

    async def give_up(self) -> None:
        """Cancel what is computed early, and bring the environment to where the episode is."""
        self._calls.close_turn()
        await self._drop()
        self._catch_up()

    async def _follow(self, place: int) -> None:
        """Let copies take the steps that come after ``place`` in a stored episode, unless they do so already."""
        if self._followed in self._forecasts:
            return
        await self._drop()
        self._followed = self._forecasts[0] if self._forecasts else None
        for later, step in enumerate(self._followed or ()):
            if later > place:
                copy = self._env.fork(step.before)
                self._copies[later] = _Copy(copy, asyncio.create_task(self._ask(copy, step.text)))

    async def _early_answer(self, place: int) -> tuple[Any, ...] | None:
        copy = self._copies.pop(place, None)
        if copy is None:
            return None
        answer: Any = (await asyncio.gather(copy.step, return_exceptions=True))[0]
        if isinstance(answer, BaseException) or answer[4]["failure"]:
            return None
        self._ahead = copy.env
        return tuple(answer)

    def _catch_up(self) -> None:
        """Bring the environment to where the episode is."""
        if self._ahead is not None:
            self._env.restore(self._ahead.snapshot())
            self._ahead = None

    async def _drop(self) -> None:
        """Cancel the steps of copies."""
        steps = [copy.step for copy in self._copies.values()]
        self._copies = {}
        for step in steps:
            step.cancel()
        await asyncio.gather(*steps, return_exceptions=True)


def _same(stored: Sequence[Mapping[str, Any]], messages: Sequence[Mapping[str, Any]]) -> bool:
    return [*stored] == [*messages]
