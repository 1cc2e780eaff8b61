from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.verl.player import EpisodePlayer
from turntree.agents.verl.run_ahead_plays import AheadPlays
from turntree.spec_tree import DialogueState

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}
GIVEN_UP = Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT)


class Pipe:
    """A server that answers as it is told."""

    def __init__(self, engine: Any = None) -> None:
        self.engine = engine
        self.asked: list[tuple[DialogueState, Sampling, int]] = []
        self.begun: list[int] = []
        self.announced: list[DialogueState] = []
        self.answered = asyncio.Event()

    async def generate(
        self, prompt_ids: Any, sampling: Sampling, *, state: Any, draft: Sequence[int] = (), ahead_for: int = 0
    ) -> Completion:
        self.asked.append((state, sampling, ahead_for))
        if self.engine is None:
            await self.answered.wait()
            return GIVEN_UP
        turn: Completion = await self.engine.generate(prompt_ids, sampling, state=state)
        return turn

    async def begin_step(self, step: int) -> None:
        self.begun.append(step)

    async def announce(self, states: Sequence[DialogueState]) -> None:
        self.announced += states


def player(config: Any, tokenizer: Any) -> EpisodePlayer:
    return EpisodePlayer(config, tokenizer)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_episodes_are_played_with_the_seeds_that_their_step_will_use(
    rollout_config: Any, chatml: Any, row: dict[str, Any]
) -> None:
    wanted, ahead = Pipe(ScriptedEngine(lambda prompt: "7", chatml)), Pipe(ScriptedEngine(lambda prompt: "7", chatml))
    one = player(rollout_config, chatml)
    await one.play_group(SAMPLING, row, lambda: wanted, size=2)
    AheadPlays(one, {0: ahead}, slots=4).start([row], SAMPLING, size=2)
    await settled()
    assert [(state, sampling) for state, sampling, _ in ahead.asked] == [
        (state, sampling) for state, sampling, _ in wanted.asked
    ]
    assert {step for _, _, step in ahead.asked} == {row["global_steps"]}
    assert {step for _, _, step in wanted.asked} == {0}


async def test_nothing_is_recorded_of_what_is_played_ahead(
    rollout_config: Any, chatml: Any, row: dict[str, Any]
) -> None:
    pipe = Pipe(ScriptedEngine(lambda prompt: "7", chatml))
    AheadPlays(player(rollout_config, chatml), {0: pipe}, slots=1).start([row], SAMPLING, size=1)
    await settled()
    assert pipe.asked
    run_dir = rollout_config.custom.turntree.run_dir
    assert not list(Path(run_dir).rglob("*.jsonl"))


async def test_the_stores_hear_where_the_rows_begin(rollout_config: Any, chatml: Any, row: dict[str, Any]) -> None:
    pipe = Pipe()
    plays = AheadPlays(player(rollout_config, chatml), {0: pipe}, slots=1)
    plays.start([row, {**row, "index": 4}], SAMPLING, size=1)
    await settled()
    assert len({state.exact for state in pipe.announced}) == 2
    assert pipe.asked[0][0] == pipe.announced[0]


async def test_as_many_episodes_are_played_at_once_as_there_are_slots(
    rollout_config: Any, chatml: Any, row: dict[str, Any]
) -> None:
    pipe = Pipe()
    AheadPlays(player(rollout_config, chatml), {0: pipe}, slots=3).start([row], SAMPLING, size=8)
    await settled()
    assert len(pipe.asked) == 3


async def test_a_step_that_begins_ends_what_was_played_for_it(
    rollout_config: Any, chatml: Any, row: dict[str, Any]
) -> None:
    pipe = Pipe()
    plays = AheadPlays(player(rollout_config, chatml), {0: pipe}, slots=2)
    plays.start([row], SAMPLING, size=4)
    await settled()
    await plays.begin_step(5)
    await settled()
    assert pipe.begun == [5]
    assert len(pipe.asked) == 2, "those that waited for a slot were not begun"


async def test_a_turn_that_is_given_up_ends_its_episode_in_silence(
    rollout_config: Any, chatml: Any, row: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    pipe = Pipe()
    AheadPlays(player(rollout_config, chatml), {0: pipe}, slots=1).start([row], SAMPLING, size=2)
    await settled()
    pipe.answered.set()
    await settled()
    assert len(pipe.asked) == 2, "the next one began"
    assert caplog.text == ""


async def test_a_server_that_is_away_does_not_hold_a_step_up(
    rollout_config: Any, chatml: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(Pipe):
        async def begin_step(self, step: int) -> None:
            raise RuntimeError("the actor died")

    await AheadPlays(player(rollout_config, chatml), {0: Away()}, slots=1).begin_step(3)
    assert "was not told that step 3 begins: the actor died" in caplog.text
