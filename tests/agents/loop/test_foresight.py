from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.engines.protocol import Sampling
from turntree.agents.episodes.episode import Episode
from turntree.agents.loop.foresight import Foresight
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.loop.stored_episodes import StoredEpisode, StoredEpisodes, StoredStep
from turntree.agents.reuse.prefix_reuse import PrefixReuse
from turntree.agents.reuse.reuse_config import ReuseConfig, ReuseMode
from turntree.envs import Env, Limits, Message, Reply, Role, Task
from turntree.envs.errors import SnapshotError

TURNS = 6


class Echo(Env):
    """Answers each turn with its length, from some turn on in other words; the steps of all copies are counted."""

    forkable = True

    def __init__(self, *, changed_from_turn: int = 99) -> None:
        super().__init__(limits=Limits(max_turns=TURNS, max_turn_tokens=8))
        self.changed_from_turn = changed_from_turn
        self.at_work: list[int] = []
        self.lock = threading.Lock()

    static_attributes = Env.static_attributes | {"changed_from_turn", "at_work", "lock"}

    def task(self, index: int) -> Task:
        return Task(id=f"echo/{index}", prompt=f"say {index}")

    def reply(self, message: Message) -> Reply:
        turn = sum(said.role is Role.ASSISTANT for said in self.messages)
        with self.lock:
            self.at_work.append(turn)
        word = "so" if turn < self.changed_from_turn else "but"
        return Reply(messages=(Message(role=Role.USER, content=f"{word} {len(message.content)}"),), reward=1.0)


class Outside(Echo):
    """Not forkable: that is never inherited."""


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[LocalEngine]:
    config = LocalEngineConfig(dtype="float64", speculation=None, max_batch=8, max_context=256, threads=1)
    with LocalEngine.from_pretrained(tiny_model, config=config) as engine:
        yield engine


@pytest.fixture
def patient(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> LocalEngine:
    """An engine whose steps begin late enough that what is asked for at once is all there."""
    step = engine._core.step
    monkeypatch.setattr(engine._core, "step", lambda: (time.sleep(0.02), step()))
    return engine


def play(env: Env, engine: Any, tokenizer: Any, stored: StoredEpisodes | None, seed: int = 3) -> Episode:
    episode = play_step(env, engine, tokenizer, stored, seed)
    if stored is not None:
        stored.close_step()
    return episode


def play_step(env: Env, engine: Any, tokenizer: Any, stored: StoredEpisodes | None, seed: int) -> Episode:
    """One episode of a step that is still running."""
    sampling = Sampling(temperature=1.0, seed=seed)
    return asyncio.run(rollout(env, engine, Renderer(tokenizer), index=1, seed=7, sampling=sampling, stored=stored))


def told(episode: Episode) -> list[Any]:
    return [(turn.prompt_ids, turn.completion.token_ids, turn.observation, turn.reward) for turn in episode.turns]


def logprobs(episode: Episode) -> list[float]:
    return [value for turn in episode.turns for value in turn.completion.logprobs]


def sure() -> StoredEpisodes:
    """All turns of a forecast are asked for at once."""
    return StoredEpisodes(least_chance=0.001)


@pytest.mark.parametrize("kind", [Echo, Outside])
def test_an_episode_that_is_reproduced_whole_needs_two_passes_whatever_its_turns(
    patient: LocalEngine, chatml: Any, kind: type[Echo]
) -> None:
    env, stored = kind(), sure()
    first = play(env, patient, chatml, stored)
    assert len(first.turns) == TURNS
    before = patient.stats().forward_passes
    again = play(env, patient, chatml, stored)
    assert told(again) == told(first)
    assert patient.stats().forward_passes - before <= 2
    # The last prompt was computed first, and its turn may have ended before the others took from it.
    assert all(turn.completion.cached_tokens == len(turn.prompt_ids) - 1 for turn in again.turns[:-1])
    assert [m.content for m in env.messages] == [m.content for m in first.messages], "it is where the episode is"
    before = patient.stats().forward_passes
    play(env, patient, chatml, None)
    assert patient.stats().forward_passes - before > 2 * TURNS, "the control needs a pass a token"


@pytest.mark.parametrize("changes", [{"changed_from_turn": turn} for turn in (1, 3, TURNS)])
def test_an_answer_that_changed_ends_the_forecast(engine: LocalEngine, chatml: Any, changes: dict[str, int]) -> None:
    """A copy of another environment answers as that one does, so the answer is the changed one."""
    stored, changed = sure(), Echo(**changes)
    play(Echo(), engine, chatml, stored)
    found, expected = play(changed, engine, chatml, stored), play(Echo(**changes), engine, chatml, None)
    assert told(found) == told(expected)
    assert logprobs(found) == pytest.approx(logprobs(expected), abs=1e-9)


def test_a_forecast_that_is_believed_against_its_prompt_gives_another_episode(
    engine: LocalEngine, chatml: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = sure()
    play(Echo(), engine, chatml, stored)

    async def believe(self: Foresight, prompt: object) -> None:
        pass

    monkeypatch.setattr(Foresight, "reach", believe)
    wrong = play(Echo(changed_from_turn=3), engine, chatml, stored)
    right = play(Echo(changed_from_turn=3), engine, chatml, None)
    assert logprobs(wrong) != pytest.approx(logprobs(right), abs=1e-6)


def test_another_noise_takes_from_the_forecast_only_what_it_says_itself(engine: LocalEngine, chatml: Any) -> None:
    env, stored = Echo(), sure()
    play(env, engine, chatml, stored, seed=3)
    assert told(play(env, engine, chatml, stored, seed=4)) == told(play(Echo(), engine, chatml, None, seed=4))


def test_an_environment_that_is_not_forkable_takes_no_step_that_the_episode_does_not(
    engine: LocalEngine, chatml: Any
) -> None:
    for kind, tried in ((Outside, False), (Echo, True)):
        env, stored = kind(), sure()
        play(env, engine, chatml, stored, seed=3)
        env.at_work.clear()
        play(env, engine, chatml, stored, seed=4)
        assert (sorted(env.at_work) != list(range(1, TURNS + 1))) == tried
    with pytest.raises(SnapshotError, match="forkable = True"):
        Outside().fork(b"")


@pytest.mark.parametrize("mode", ["replay", "exact"])
def test_reuse_begins_the_turns_of_a_forecast_with_their_own_stored_turns(
    patient: LocalEngine, chatml: Any, mode: str
) -> None:
    """Turns of siblings are stored at the same states; the first prompt is theirs in common."""
    config = ReuseConfig(mode=ReuseMode(mode), top_k=1000)
    reuse = PrefixReuse(patient, config, vocabulary=patient.vocabulary, max_context=256, seed=1)
    stored, seeds = sure(), (3, 4, 5)
    env = Echo()
    sampled = [told(play_step(env, reuse, chatml, stored, seed)) for seed in seeds]
    reuse.close_step()
    stored.close_step()
    before = patient.stats().forward_passes
    again = [told(play_step(env, reuse, chatml, stored, seed)) for seed in (6, 7, 8)]
    assert sorted(again, key=str) == sorted(sampled, key=str)
    assert reuse.stats.tickets == reuse.stats.whole == TURNS * len(seeds)
    assert patient.stats().forward_passes - before <= 2 * len(seeds)


def test_without_a_seed_no_episode_is_kept_for_having_ended_late(engine: LocalEngine, chatml: Any) -> None:
    ranks: list[int] = []

    class Noted(StoredEpisodes):
        def add(self, key: Any, episode: StoredEpisode, *, rank: int) -> None:
            ranks.append(rank)

    for _ in range(3):
        asyncio.run(rollout(Echo(), engine, Renderer(chatml), index=1, stored=Noted()))
    assert len(set(ranks)) == 3


def episode(name: str) -> StoredEpisode:
    return StoredEpisode((StoredStep((1,), (2,), name, 0, None),), ())


def test_an_episode_is_used_once_and_in_a_later_step_and_room_depends_on_ranks_alone() -> None:
    stored = StoredEpisodes(most=2)
    for name, rank in (("a", 5), ("b", 9), ("c", 7), ("d", 1)):
        stored.add("key", episode(name), rank=rank)
    assert stored.take("key", pick=0) is None, "its step is still running"
    stored.close_step()
    taken = [stored.take("key", pick=pick) for pick in (1, 0, 0)]
    assert [one.steps[0].text if one else None for one in taken] == ["c", "b", None]


def test_forecasts_that_do_not_come_true_are_asked_for_less() -> None:
    stored = StoredEpisodes()
    deep = stored.depth
    for _ in range(100):
        stored.compare(False)
    assert stored.depth == 1 < deep
    for _ in range(100):
        stored.compare(True)
    assert stored.depth > 4


@pytest.mark.parametrize("wrong", [{"most": 0}, {"least_chance": 0.0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        StoredEpisodes(**wrong)
