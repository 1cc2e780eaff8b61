import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from benchmark_modules import benchmark_module
from catalogue_policies import LOSERS, WINNERS, play_as
from interpreter import python
from playing import arguments_of
from tables import table

from turntree.envs import (
    Env,
    Message,
    Reply,
    Task,
    UnknownEnvironment,
    list_envs,
    make,
    register,
    registry,
    require_conformance,
)
from turntree.envs.catalogue import CATALOGUE, Entry, find_entry
from turntree.envs.checking.script import play, script_for
from turntree.envs.errors import UngradedAnswer
from turntree.envs.math.arithmetic import Arithmetic

every_entry = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)


@every_entry
def test_every_environment_keeps_the_rules(entry: Entry, tmp_path: Path) -> None:
    require_conformance(functools.partial(make, entry.id, **arguments_of(entry, tmp_path)))
    assert make(entry.id, **arguments_of(entry, tmp_path)).unwrapped.forkable, "its episodes can be judged again"


def transcripts() -> str:
    played = []
    for entry in CATALOGUE:
        if not entry.needs_data:
            env = make(entry.id)
            played += [(step.observation, step.reward, step.info) for step in play(env, script_for(env), seed=11)]
    return hashlib.sha256(json.dumps(played).encode()).hexdigest()


def test_another_process_says_the_same() -> None:
    code = f"import runpy; print(runpy.run_path({__file__!r})['transcripts']())"
    given = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    assert python("-c", code, check=True, env=given).stdout.strip() == transcripts()


def test_ids_are_unique_and_listed_with_a_line_and_those_of_another_library_refused() -> None:
    ids = [entry.id for entry in CATALOGUE]
    assert len(set(ids)) == len(ids)
    assert set(ids) <= set(list_envs())
    assert list_envs() == sorted(list_envs())
    assert all(entry.summary.endswith(".") and len(entry.summary) < 100 for entry in CATALOGUE)
    assert find_entry("turntree/Arithmetic-v0") is CATALOGUE[0]
    assert find_entry("someone/Else-v0") is None
    with pytest.raises(TypeError, match=r"use gymnasium\.make"):
        make("CartPole-v1")


@pytest.mark.parametrize(("name", "arguments", "complaint"), table(__file__, "senseless_settings"))
def test_settings_that_make_no_sense_are_refused_in_words(name: str, arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make(f"turntree/{name}-v0", **arguments).task(0)


@every_entry
def test_one_policy_wins_and_those_that_say_nothing_useful_lose(entry: Entry, tmp_path: Path) -> None:
    env = make(entry.id, **arguments_of(entry, tmp_path))
    for index in range(min(env.num_tasks or 10, 10)):
        played = play_as(env, WINNERS[entry.id], index)
        assert played.won, played
        for loser in LOSERS.values():
            played = play_as(env, loser, index)
            assert played.lost, played
    env.close()


class Faulty(Arithmetic):
    # Pays every other task for any text, cannot grade the third, and warns.

    num_tasks = 4

    def reset(self, **kwargs: Any) -> tuple[str, dict[str, Any]]:
        gymnasium.logger.warn("something is wrong")
        return super().reset(**kwargs)

    def reply(self, message: Message) -> Reply:
        index = int(self.current_task.id.rpartition("/")[2])
        if index == 2:
            raise UngradedAnswer("nobody can tell")
        return Reply(reward=float(index % 2), done=True)


@pytest.mark.filterwarnings("ignore:.*something is wrong")
def test_the_benchmark_of_the_catalogue_names_every_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    catalogue = benchmark_module("catalogue")
    register("tests/Faulty-v0", Faulty)
    monkeypatch.setitem(WINNERS, "tests/Faulty-v0", WINNERS["turntree/Arithmetic-v0"])
    row = catalogue.examine("tests/Faulty-v0", "train", 200)
    ungraded = "arithmetic/train/2: reply() raised UngradedAnswer: nobody can tell"
    assert row["tasks"] == 4
    assert row["gold_wins"] == 2
    assert row["gold_does_not_win"] == ["arithmetic/train/0: 0, done", ungraded]
    assert row["useless_wins"] == dict.fromkeys(LOSERS, 2)
    assert row["useless_is_ungraded"] == dict.fromkeys(LOSERS, 1)
    won = ["arithmetic/train/1: 1, done", ungraded, "arithmetic/train/3: 1, done"]
    assert row["useless_does_not_lose"] == dict.fromkeys(LOSERS, won)
    assert any("something is wrong" in warning for warning in row["warnings"])


@every_entry
def test_the_answer_is_not_said_before_it_is_asked_for(entry: Entry, tmp_path: Path) -> None:
    env = make(entry.id, **arguments_of(entry, tmp_path))
    _, info = env.reset(seed=1, options={"index": 0})
    answer = env.current_task.answer
    if len(answer) > 2:  # a shorter one stands in many questions by chance
        assert answer not in json.dumps(info["messages"])


@pytest.mark.parametrize(("id", "hint"), table(__file__, "unknown_ids"))
def test_an_unknown_id_names_the_nearest_or_what_there_is(id: str, hint: str) -> None:
    with pytest.raises(UnknownEnvironment, match=f"'{id}'; {hint}"):
        make(id)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    before = list_envs()
    yield
    for id in set(list_envs()) - set(before):
        registry.unregister(id)


def test_a_registered_environment_is_made_with_its_default_arguments() -> None:
    register("tests/Sums-v0", Arithmetic, operators="+")
    env = make("tests/Sums-v0")
    assert (type(env), env.operators, env.spec.id) == (Arithmetic, "+", "tests/Sums-v0")
    assert make("tests/Sums-v0", operators="*").operators == "*"  # type: ignore[attr-defined]
    assert "tests/Sums-v0" in list_envs()
    assert isinstance(gymnasium.make("tests/Sums-v0").unwrapped, Env)
    registry.unregister("tests/Sums-v0")
    assert "tests/Sums-v0" not in {*list_envs(), *gymnasium.registry}


def test_entry_points_are_registered_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ("tests/Plugin-v0", "not an id", "turntree/Arithmetic-v0")
    points = [importlib.metadata.EntryPoint(id, "no_such_module:Env", "turntree.envs") for id in ids]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    registry.register_with_gymnasium()
    assert set(ids) & set(list_envs()) == {"tests/Plugin-v0", "turntree/Arithmetic-v0"}
    assert type(make("turntree/Arithmetic-v0")) is Arithmetic
    with pytest.raises(ModuleNotFoundError):
        make("tests/Plugin-v0")


def test_gymnasium_makes_them_after_an_import_or_by_a_qualified_id() -> None:
    shown = python("-c", table(__file__, "gymnasium_makes"), check=True).stdout
    assert shown == "turntree/Arithmetic-v0 turntree/Arithmetic-v0\n"


def test_gymnasiums_default_wrappers_leave_the_episode_alone() -> None:
    env = gymnasium.make("turntree/Arithmetic-v0", tool_format="compact")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("x")
    env.reset(options={"task": Task(id="t", prompt="1+1", answer="2")})
    for _ in range(3):
        assert env.step("calculator(1+1)")[0] == "2"
    assert env.step("#### 2")[1:4] == (1.0, True, False)
