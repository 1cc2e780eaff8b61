import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from recording_engine import RecordingEngine, a_turn

from turntree.agents.engines.protocol import Completion, FinishReason
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.verl.playing.player import EpisodePlayer
from turntree.agents.verl.playing.replica_turns import ReplicaTurns
from turntree.agents.verl.playing.run_ahead import RowForecast, RunAheadEpisodes

ROWS = [
    {"index": 10 + position, "env_id": "e", "env_kwargs": "{}", "agent_name": "a", "raw_prompt": []}
    for position in range(7)
]


class Shuffled:
    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter([(position * 3 + self.epoch) % 7 for position in range(7)])


def forecast(order: Any = range(7), *, fetched: int = 2, batch: int = 2, **settings: Any) -> RowForecast:
    return RowForecast(ROWS, order, fetched=fetched, batch=batch, **settings)


def submitted(*indices: int, step: int = 1) -> list[dict[str, Any]]:
    return [{"index": index, "global_steps": step} for index in indices]


def indices(rows: list[dict[str, Any]]) -> list[int]:
    return [row["index"] for row in rows]


def test_the_rows_of_the_next_step_follow_those_of_this_one() -> None:
    rows = forecast().after(submitted(10, 11, step=4))
    assert rows == [
        {"index": index, "env_id": "e", "env_kwargs": "{}", "agent_name": "a", "global_steps": 5} for index in (12, 13)
    ]
    known = forecast(last_step=2)
    assert known.after(submitted(10, 11, step=1)) != []
    assert known.after(submitted(12, 13, step=2)) == []


def test_an_epoch_ends_where_the_loader_drops_the_rest() -> None:
    known = forecast()
    for first in (10, 12):
        assert indices(known.after(submitted(first, first + 1))) == [first + 2, first + 3]
    assert indices(known.after(submitted(14, 15))) == [10, 11]
    assert indices(known.after(submitted(10, 11))) == [12, 13]
    known = forecast()
    assert known.after(submitted(99, 98)) == []
    assert indices(known.after(submitted(12, 13))) == [14, 15]


def test_every_epochs_own_order_is_followed() -> None:
    known, trainer = forecast(Shuffled()), Shuffled()
    batches: list[list[int]] = []
    for _ in range(3):
        positions = list(trainer)
        batches += [[10 + position for position in positions[first : first + 2]] for first in (0, 2, 4)]
    for batch, following in pairwise(batches):
        assert indices(known.after(submitted(*batch))) == following


def test_rows_that_a_group_filter_takes_one_by_one_are_followed() -> None:
    known = forecast(fetched=1, batch=2)
    assert indices(known.after(submitted(10, 11))) == [12, 13]
    assert indices(known.after(submitted(12))) == [13, 14]
    assert indices(known.after(submitted(13, 14))) == [15, 16]


def test_a_data_set_smaller_than_a_fetch_is_refused() -> None:
    with pytest.raises(ValueError, match=r"has 7 rows, but the data loader takes 8 rows"):
        forecast(fetched=8, batch=8).after(submitted(10))


SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1}


class Pipe(RecordingEngine):
    def __init__(self, engine: ScriptedEngine | None = None) -> None:
        super().__init__(engine or self.give_up)
        self.begun: list[int] = []
        self.answered = asyncio.Event()

    async def give_up(self, *_: Any) -> Completion:
        await self.answered.wait()
        return a_turn(finish_reason=FinishReason.ABORT)

    async def begin_step(self, step: int) -> None:
        self.begun.append(step)


@pytest.fixture
def player(rollout_config: Any, chatml: Any) -> EpisodePlayer:
    return EpisodePlayer(rollout_config, chatml)


def played_by(player: EpisodePlayer, pipe: Any, *, slots: int = 1) -> RunAheadEpisodes:
    return RunAheadEpisodes(player, {0: pipe}, ReplicaTurns({0: pipe}, lambda rank: settled()), slots=slots)


Ahead = Callable[..., Awaitable[RunAheadEpisodes]]


@pytest.fixture
def ahead(player: EpisodePlayer, row: dict[str, Any]) -> Ahead:
    async def start(
        pipe: Pipe, *, slots: int = 1, size: int = 1, rows: Sequence[dict[str, Any]] = (row,)
    ) -> RunAheadEpisodes:
        plays = played_by(player, pipe, slots=slots)
        plays.start(rows, SAMPLING, size=size)
        await settled()
        return plays

    return start


@pytest.fixture
def saying(chatml: Any) -> Callable[[], Pipe]:
    return lambda: Pipe(ScriptedEngine(lambda prompt: "7", chatml))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_episodes_are_played_with_the_seeds_that_their_step_will_use(player, ahead, saying, row):
    wanted, pipe = saying(), saying()
    await player.play_group(SAMPLING, row, lambda: wanted, size=2)
    await ahead(pipe, slots=4, size=2)
    assert pipe.asked == [replace(request, precomputed_for=row["global_steps"]) for request in wanted.asked]
    assert {request.precomputed_for for request in wanted.asked} == {0}
    assert {request.sample for request in wanted.asked} == {0, 1}


async def test_nothing_is_recorded_of_what_is_played_ahead(ahead, saying, tmp_path):
    pipe = saying()
    await ahead(pipe)
    assert pipe.asked
    assert not list(tmp_path.rglob("*.jsonl"))


async def test_as_many_episodes_are_played_at_once_as_there_are_slots_until_their_step_begins(ahead: Ahead) -> None:
    pipe = Pipe()
    await ahead(pipe, slots=3, size=8)
    assert len(pipe.asked) == 3
    pipe = Pipe()
    plays = await ahead(pipe, slots=2, size=4)
    await plays.begin_step(5)
    await settled()
    assert pipe.begun == [5]
    assert len(pipe.asked) == 2, "those that waited for a slot were not begun"


async def test_a_turn_that_is_given_up_ends_its_episode_in_silence(ahead, caplog):
    pipe = Pipe()
    await ahead(pipe, size=2)
    pipe.answered.set()
    await settled()
    assert len(pipe.asked) == 2, "the next one began"
    assert caplog.text == ""


async def test_a_server_that_is_away_does_not_hold_a_step_up(player, caplog):
    class Away(Pipe):
        async def begin_step(self, step: int) -> None:
            raise RuntimeError("the actor died")

    await played_by(player, Away()).begin_step(3)
    assert "could not begin step 3: the actor died" in caplog.text
