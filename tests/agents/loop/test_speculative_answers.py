import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machine_speed import patience

from turntree.agents.engines.local import LocalEngine, LocalEngineConfig
from turntree.agents.engines.protocol import Sampling
from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.episode import Episode
from turntree.agents.loop import speculative_answers, tool_calls_ahead
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.loop.stored_episodes import StoredEpisodes, StoredStep
from turntree.agents.turn_drafts.config import ReuseConfig, ReuseMode
from turntree.agents.turn_drafts.prefix_reuse import PrefixReuse
from turntree.envs import Env, Limits, Message, Reply, Role, Task
from turntree.envs.errors import SnapshotError

TURNS = 6


class Echo(Env):
    # Counts letters, from some turn on in other words; the steps of all copies are counted.

    forkable = True

    def __init__(self, *, changed_from_turn: int = 99, meets: threading.Barrier | None = None) -> None:
        super().__init__(limits=Limits(max_turns=TURNS, max_turn_tokens=8))
        self.changed_from_turn = changed_from_turn
        self.meets = meets
        self.letters = 0
        self.at_work: list[int] = []
        self.lock = threading.Lock()

    static_attributes = Env.static_attributes | {"changed_from_turn", "meets", "at_work", "lock"}

    def task(self, index: int) -> Task:
        return Task(id=f"echo/{index}", prompt=f"say {index}")

    def start(self, task: Task) -> list[Message]:
        self.letters = 0
        return list(super().start(task))

    def reply(self, message: Message) -> Reply:
        turn = sum(said.role is Role.ASSISTANT for said in self.messages)
        with self.lock:
            self.at_work.append(turn)
        if self.meets is not None:
            self.meets.wait()
        self.letters += len(message.content)
        word = "so" if turn < self.changed_from_turn else "but"
        return Reply(messages=(Message(role=Role.USER, content=f"{word} {self.letters}"),), reward=1.0)


class Outside(Echo):
    """Not forkable: that is never inherited."""


def say_length(prompt: tuple[int, ...]) -> str:
    return "a" * (1 + len(prompt) % 5)


def say_other(prompt: tuple[int, ...]) -> str:
    return say_length(prompt) if len(prompt) < 45 else "b"


def play(env: Env, engine: Any, tokenizer: Any, stored: StoredEpisodes | None, seed: int = 3) -> Episode:
    sampling = Sampling(temperature=1.0, seed=seed)
    return asyncio.run(rollout(env, engine, Renderer(tokenizer), index=1, seed=7, sampling=sampling, stored=stored))


def told(episode: Episode) -> list[Any]:
    return [(turn.prompt_ids, turn.completion.token_ids, turn.observation, turn.reward) for turn in episode.turns]


def test_the_tool_calls_of_an_episode_that_goes_as_a_stored_one_are_made_at_once(chatml: Any) -> None:
    stored, engine = StoredEpisodes(), ScriptedEngine(say_length, chatml)
    first = play(Echo(), engine, chatml, stored)
    assert len(first.turns) == TURNS
    env = Echo(meets=threading.Barrier(TURNS, timeout=patience(30)))
    again = play(env, engine, chatml, stored)
    assert told(again) == told(first)
    assert sorted(env.at_work) == list(range(1, TURNS + 1))
    assert [m.content for m in env.messages] == [m.content for m in first.messages], "it is where the episode is"
    alone = play(Echo(meets=threading.Barrier(TURNS, timeout=0.2)), engine, chatml, StoredEpisodes())
    assert "BrokenBarrierError" in alone.failure, "the control has no stored episode"


@pytest.mark.parametrize("changed", [1, 3, TURNS])
def test_an_answer_that_changed_ends_the_forecast(chatml: Any, changed: int) -> None:
    stored, engine = StoredEpisodes(), ScriptedEngine(say_length, chatml)
    play(Echo(), engine, chatml, stored)
    env = Echo(changed_from_turn=changed)
    found = play(env, engine, chatml, stored)
    assert told(found) == told(play(Echo(changed_from_turn=changed), engine, chatml, None))
    assert [m.content for m in env.messages] == [m.content for m in found.messages]


class Drifting(Echo):
    # Continues from the process's last episode, which no snapshot holds: a defect of its author.

    forkable = True
    drift = 0

    def reply(self, message: Message) -> Reply:
        Drifting.drift += 1
        self.letters += Drifting.drift
        return super().reply(message)


def test_a_forecast_that_is_believed_against_its_answers_gives_another_episode(chatml, monkeypatch):
    """Control of the test above."""

    def letters(turn: int, stored: StoredEpisodes) -> int:
        episode = play(Drifting(), ScriptedEngine(lambda prompt: "aaaa", chatml), chatml, stored)
        return int(str(episode.turns[turn].observation[0].content).split()[1])

    for believed in (False, True):
        Drifting.drift, stored = 0, StoredEpisodes()
        assert letters(2, stored) == 3 * 4 + 1 + 2 + 3
        if believed:
            for module in (speculative_answers, tool_calls_ahead):
                monkeypatch.setattr(module, "same_state", lambda before, here: True)
        Drifting.drift = 100
        assert (letters(2, stored) > 3 * 4 + 300) is not believed


def test_a_turn_that_changed_takes_from_the_forecast_only_what_was_said_before(chatml: Any) -> None:
    stored, env = StoredEpisodes(), Echo()
    first = play(env, ScriptedEngine(say_length, chatml), chatml, stored)
    other = ScriptedEngine(say_other, chatml)
    expected = told(play(Echo(), other, chatml, None))
    assert told(first)[:1] == expected[:1]
    assert told(first) != expected
    env.at_work.clear()
    assert told(play(env, other, chatml, stored)) == expected
    assert sorted(env.at_work) != list(range(1, TURNS + 1)), "copies took steps that the episode did not"
    env.at_work.clear()
    assert told(play(env, other, chatml, stored)) == expected
    assert sorted(env.at_work) == list(range(1, TURNS + 1)), "of two stored episodes the one that went as this one"


def test_the_first_call_is_made_early_where_all_stored_episodes_made_the_same(chatml: Any) -> None:
    stored, env = StoredEpisodes(), Echo()

    class Waiting(ScriptedEngine):
        async def generate(self, request: Any) -> Any:
            for _ in range(30_000):
                if 1 in env.at_work:
                    return await super().generate(request)
                await asyncio.sleep(0.001)
            raise AssertionError("the first call is made only when its turn was sampled")

    play(Echo(), ScriptedEngine(say_length, chatml), chatml, stored)
    first = play(env, Waiting(say_length, chatml), chatml, stored)
    assert not first.failure
    assert sorted(env.at_work) == list(range(1, TURNS + 1))
    play(Echo(), ScriptedEngine(lambda prompt: "b", chatml), chatml, stored)
    env.at_work.clear()
    assert told(play(env, ScriptedEngine(say_length, chatml), chatml, stored)) == told(first)
    assert sorted(env.at_work) == list(range(1, TURNS + 1)), "of two that differ neither is tried"


def test_an_environment_that_is_not_forkable_takes_no_step_that_the_episode_does_not(chatml: Any) -> None:
    env, stored = Outside(), StoredEpisodes()
    play(env, ScriptedEngine(say_length, chatml), chatml, stored)
    env.at_work.clear()
    play(env, ScriptedEngine(say_other, chatml), chatml, stored)
    assert env.at_work == list(range(1, TURNS + 1))
    with pytest.raises(SnapshotError, match="forkable = True"):
        Outside().fork(b"")


@pytest.fixture
def patient(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalEngine]:
    # Its steps begin late enough that all concurrent requests have arrived.
    config = LocalEngineConfig(dtype="float64", speculation=None, max_batch=8, max_context=256, threads=1)
    with LocalEngine.from_pretrained(tiny_model, config=config) as engine:
        step = engine._core.step
        monkeypatch.setattr(engine._core, "step", lambda: (time.sleep(0.02), step()))
        yield engine


@pytest.mark.parametrize("kind", [Echo, Outside])
@pytest.mark.parametrize("mode", ["same_seed", "rejection_sampling"])
def test_an_episode_that_is_reproduced_whole_needs_two_passes_whatever_its_turns(patient, chatml, mode, kind):
    def passes(early: bool) -> tuple[float, bool]:
        config = ReuseConfig(mode=ReuseMode(mode), top_k=1000, early=early)
        reuse = PrefixReuse(patient, config, vocabulary=patient.vocabulary, max_context=256, seed=1)
        stored = StoredEpisodes()
        first = told(play(kind(), reuse, chatml, stored))
        reuse.close_step()
        before = patient.stats().forward_passes
        again = told(play(kind(), reuse, chatml, stored, seed=6))
        return patient.stats().forward_passes - before, again == first

    assert passes(early=True) <= (2, True)
    turn_by_turn, same = passes(early=False)
    assert same
    assert turn_by_turn >= TURNS, "the control waits for each turn"


def episode(name: str, size: int = 1) -> tuple[StoredStep, ...]:
    return (StoredStep(name, b"." * (size - 1), ""),)


def names(stored: StoredEpisodes, key: str) -> list[str]:
    return [one[0].text for one in stored.of(key)]


def test_room_is_bounded_and_what_was_played_longest_ago_goes_first() -> None:
    stored = StoredEpisodes(max_bytes=10)
    for name, key, size in (("a", "k", 4), ("b", "l", 3), ("c", "k", 3), ("d", "k", 1)):
        stored.add(key, episode(name, size))
    assert (names(stored, "k"), names(stored, "l")) == (["d", "c", "a"], [])
    stored.add("m", episode("e", 8))
    assert (names(stored, "k"), names(stored, "m")) == (["d"], ["e"])
    stored.add("n", episode("f", 11))
    assert [names(stored, key) for key in "klmn"] == [[], [], [], []]
    stored = StoredEpisodes()
    for number in range(40):
        stored.add("k", episode(str(number)))
    assert names(stored, "k") == [str(number) for number in range(39, 23, -1)]
    with pytest.raises(ValueError, match="max_bytes"):
        StoredEpisodes(max_bytes=-1)
