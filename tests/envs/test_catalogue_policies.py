"""Every environment of the catalogue is won by one scripted policy and lost by another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playing import arguments_of, call

from turntree.envs import Env, Task, make
from turntree.envs.calculator import one_operation_calculator
from turntree.envs.catalogue import CATALOGUE, Entry
from turntree.envs.math.sets import MATH_SETS

Policy = Callable[[Env], Iterator[str]]


def boxed(env: Env) -> Iterator[str]:
    yield rf"It is \boxed{{{env.current_task.answer}}}."


def hashed(env: Env) -> Iterator[str]:
    yield f"#### {env.current_task.answer}"


def arithmetic(env: Env) -> Iterator[str]:
    yield call(env, one_operation_calculator.name, expression="1+1")
    yield from hashed(env)


def halve(env: Env) -> Iterator[str]:
    low, high = 1, 100
    while True:
        guess = (low + high) // 2
        yield f"{guess}"
        low, high = (guess + 1, high) if "higher" in env.messages[-1].content else (low, guess - 1)


def commands(env: Env) -> Iterator[str]:
    yield from env.current_task.answer.split("; ")


def set_all(env: Env) -> Iterator[str]:
    given, expected = env.current_task.metadata["store"], env.current_task.metadata["expected"]
    for key in given.keys() - expected.keys():
        yield call(env, "delete", key=key)
    for key, value in expected.items():
        yield call(env, "set", key=key, value=value)
    yield "Done."


def look_up(env: Env) -> Iterator[str]:
    yield call(env, "search", query=env.current_task.prompt)
    yield from boxed(env)


def serve(env: Env) -> Iterator[str]:
    for action in env.current_task.metadata["actions"]:
        yield call(env, action["name"], **action["kwargs"])
    yield f"Done. {' '.join(env.current_task.metadata['outputs'])}"


def say(text: str) -> Policy:
    def speak(env: Env) -> Iterator[str]:
        while True:
            yield text

    return speak


WINNERS: dict[str, Policy] = {
    "turntree/Arithmetic-v0": arithmetic,
    "turntree/GSM8K-v0": hashed,
    "turntree/Countdown-v0": hashed,
    "turntree/Game24-v0": hashed,
    "turntree/Equations-v0": boxed,
    "turntree/UnitConversion-v0": boxed,
    "turntree/NumberGuessing-v0": halve,
    "turntree/Adventure-v0": commands,
    "turntree/KeyValue-v0": set_all,
    "turntree/Search-v0": look_up,
    "turntree/RetailService-v0": serve,
    "turntree/AirlineService-v0": serve,
    **{entry.env_id: boxed for entry in MATH_SETS},
}
LOSERS: dict[str, Policy] = {id: say("It is -987654.5, \\boxed{-987654.5} or\n#### -987654.5") for id in WINNERS}
every_entry = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)


def play(env: Env, policy: Policy, index: int) -> tuple[float, str, Task]:
    env.reset(seed=index, options={"index": index})
    task, reward = env.current_task, 0.0
    for turn in policy(env):
        _, gained, terminated, truncated, info = env.step(turn)
        reward += gained
        if terminated or truncated:
            assert not info["failure"]
            return reward, info["stop_reason"], task
    raise AssertionError(f"the policy fell silent in {task.id}")


@every_entry
def test_one_policy_wins_and_another_loses(entry: Entry, tmp_path: Path) -> None:
    env = make(entry.id, **arguments_of(entry, tmp_path))
    for index in range(min(env.num_tasks or 10, 10)):
        reward, stop_reason, task = play(env, WINNERS[entry.id], index)
        assert (reward, stop_reason) == (1.0, "done"), task
        reward, _, task = play(env, LOSERS[entry.id], index)
        assert reward == 0.0, task
    env.close()


@every_entry
def test_the_answer_is_not_said_before_it_is_asked_for(entry: Entry, tmp_path: Path) -> None:
    env = make(entry.id, **arguments_of(entry, tmp_path))
    _, info = env.reset(seed=1, options={"index": 0})
    answer = env.current_task.answer
    if len(answer) > 2:  # a shorter one stands in many questions by chance
        assert answer not in json.dumps(info["messages"])
