from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable
from typing import Any

import pytest
from machine_speed import patience, soon

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling
from turntree.agents.errors import EngineFailed, EngineLost
from turntree.agents.verl.turn_pipe import TurnDesk, TurnPipe


class Actor:
    """A Ray actor's handle without Ray: ``handle.method.remote(...)`` over an object of this process."""

    def __init__(self, desk: TurnDesk) -> None:
        self.desk = desk
        self.calls: Counter[str] = Counter()
        self.dead = False
        self.restarts_after_submit = False

    @property
    def submit_turns(self) -> Any:
        return _Method(self._submit)

    @property
    def collect_turns(self) -> Any:
        return _Method(self._collect)

    async def _submit(self, client: str, requests: Any) -> str:
        self.calls["submit"] += 1
        if self.dead:
            raise ConnectionError("gone")
        life = self.desk.submit(client, requests)
        if self.restarts_after_submit:
            self.restarts_after_submit, self.desk = False, TurnDesk(Echo())
        return life

    async def _collect(self, client: str, life: str) -> Any:
        self.calls["collect"] += 1
        return await self.desk.collect(client, life)


class _Method:
    def __init__(self, function: Any) -> None:
        self.function = function

    def remote(self, *args: Any) -> Awaitable[Any]:
        return asyncio.ensure_future(self.function(*args))


class Echo:
    """Samples its prompt again; a prompt of one token is refused."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    async def generate(self, prompt_ids: Any, sampling: Sampling, *, state: Any = None, draft: Any = ()) -> Completion:
        await asyncio.sleep(self.seconds)
        if len(prompt_ids) == 1:
            raise ValueError("too short")
        return Completion(
            token_ids=tuple(prompt_ids),
            logprobs=(0.0,) * len(prompt_ids),
            finish_reason=FinishReason.LENGTH,
        )


async def test_turns_that_are_asked_for_together_travel_together() -> None:
    actor = Actor(TurnDesk(Echo(0.02)))
    pipe = TurnPipe(actor, "a")
    turns = await asyncio.gather(*(pipe.generate((1, number), Sampling()) for number in range(200)))
    assert [turn.token_ids for turn in turns] == [(1, number) for number in range(200)]
    assert actor.calls["submit"] == 1
    assert actor.calls["collect"] < 20


async def test_a_turn_may_be_asked_for_while_others_run() -> None:
    pipe = TurnPipe(Actor(TurnDesk(Echo(0.01))), "a")

    async def episode(number: int) -> tuple[int, ...]:
        prompt: tuple[int, ...] = (number, number)
        for _ in range(3):
            await asyncio.sleep(number / 1000)
            prompt = (*(await pipe.generate(prompt, Sampling())).token_ids, 0)
        return prompt

    episodes = await asyncio.gather(*map(episode, range(20)))
    assert episodes == [(number, number, 0, 0, 0) for number in range(20)]


async def test_clients_of_one_server_get_their_own_turns() -> None:
    actor = Actor(TurnDesk(Echo(0.01)))
    first, second = TurnPipe(actor, "a"), TurnPipe(actor, "b")
    turns = await asyncio.gather(first.generate((1, 1), Sampling()), second.generate((2, 2), Sampling()))
    assert [turn.token_ids for turn in turns] == [(1, 1), (2, 2)]


async def test_what_the_engine_raises_reaches_the_episode_that_asked_alone() -> None:
    pipe = TurnPipe(Actor(TurnDesk(Echo())), "a")
    good, bad = await asyncio.gather(
        pipe.generate((1, 2), Sampling()), pipe.generate((1,), Sampling()), return_exceptions=True
    )
    assert isinstance(good, Completion)
    assert isinstance(bad, EngineFailed)
    assert str(bad) == "ValueError: too short"


async def test_a_dead_server_ends_every_wait() -> None:
    actor = Actor(TurnDesk(Echo(1000)))
    actor.dead = True
    pipe = TurnPipe(actor, "a")
    turns = await asyncio.wait_for(
        asyncio.gather(*(pipe.generate((1, 2), Sampling()) for _ in range(3)), return_exceptions=True), patience(5)
    )
    assert [str(turn) for turn in turns] == ["the rollout server is gone: gone"] * 3
    assert all(isinstance(turn, EngineLost) for turn in turns)


async def test_what_was_asked_of_a_server_before_its_restart_is_lost_and_not_waited_for() -> None:
    actor = Actor(TurnDesk(Echo(1000)))
    pipe = TurnPipe(actor, "a")
    actor.restarts_after_submit = True
    with pytest.raises(EngineLost, match="it was restarted"):
        await asyncio.wait_for(pipe.generate((1, 1), Sampling()), patience(5))
    actor.desk = TurnDesk(Echo())
    assert (await pipe.generate((2, 2), Sampling())).token_ids == (2, 2)


async def test_a_pipe_can_be_used_again_after_a_pause() -> None:
    pipe = TurnPipe(Actor(TurnDesk(Echo())), "a")
    for number in range(3):
        assert (await pipe.generate((number, 1), Sampling())).token_ids == (number, 1)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("seconds", [0.0, 0.01])
async def test_nothing_is_left_behind(seconds: float) -> None:
    desk = TurnDesk(Echo(seconds))
    pipe = TurnPipe(Actor(desk), "a")
    await asyncio.gather(*(pipe.generate((1, 2), Sampling()) for _ in range(10)))
    await soon(lambda: not (pipe._waiting or desk._running or desk._finished))
