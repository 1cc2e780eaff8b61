"""Policies that solve every task of the catalogue, one per environment, and policies that must score 0 everywhere."""

import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from playing import call
from tables import table

from turntree.envs import Env, Task
from turntree.envs.math.calculator import one_operation_calculator
from turntree.envs.math.sets import MATH_SETS

Policy = Callable[[Env], Iterator[str]]
HAND_OVER = "transfer_to_human_agents"  #: the tool with which every service hands the conversation to a person
INTEGERS = range(3_000)


def boxed(env: Env) -> Iterator[str]:
    yield rf"It is \boxed{{{env.current_task.answer}}}."


def worked(env: Env) -> Iterator[str]:
    yield call(env, "calculator", expression="1+1")
    yield "Let me think."
    yield from boxed(env)


def hashed(env: Env) -> Iterator[str]:
    yield f"#### {env.current_task.answer}"


def arithmetic(env: Env) -> Iterator[str]:
    yield call(env, one_operation_calculator.name, expression="1+1")
    yield from hashed(env)


def solved(env: Env) -> Iterator[str]:
    yield from env.solution()


def look_up(env: Env) -> Iterator[str]:
    yield call(env, "search", query=env.current_task.prompt)
    yield from boxed(env)


def serve(env: Env) -> Iterator[str]:
    # Where the right outcome is a refusal or an answer, look up the user and the orders first.
    if turns := env.solution():
        return (yield from turns)
    task = env.current_task
    for user in re.findall(r"[a-z]+_[a-z]+_\d{4}", task.prompt)[:1]:
        yield call(env, "get_user_details", user_id=user)
    for order in re.findall(r"W\d{7}", task.prompt):
        yield call(env, "get_order_details", order_id=f"#{order}")
    yield f"Done: {', '.join(task.metadata['outputs']) or 'I am sorry, nothing more is possible'}."


WINNERS: dict[str, Policy] = {
    "turntree/Arithmetic-v0": arithmetic,
    **{f"turntree/{name}-v0": hashed for name in ("GSM8K", "Countdown", "Game24")},
    **{f"turntree/{name}-v0": boxed for name in ("Equations", "UnitConversion")},
    **{f"turntree/{name}-v0": serve for name in ("RetailService", "AirlineService", "TauAirline")},
    **{f"turntree/{name}-v0": solved for name in ("BFCL", "Repair", "NumberGuessing", "Adventure", "KeyValue")},
    "turntree/Search-v0": look_up,
    **{entry.env_id: boxed for entry in MATH_SETS},
    **{entry.tools_id: worked for entry in MATH_SETS},
}


def always(text: str) -> Policy:
    return lambda env: itertools.repeat(text)


def hand_over(env: Env) -> Iterator[str]:
    if any(tool.name == HAND_OVER for tool in env.offered_tools):
        yield call(env, HAND_OVER, summary="a customer")
    yield from itertools.repeat("")


LOSERS: dict[str, Policy] = {
    **{name: always(text) for name, text in table(__file__, "says_nothing_useful").items()},
    "hand over": hand_over,
    "all integers": always(" ".join(map(str, INTEGERS))),
    "all integers as the answer": always(
        f"\\boxed{{{', '.join(map(str, INTEGERS))}}}\n#### {' '.join(map(str, INTEGERS))}"
    ),
}


class Played(NamedTuple):
    task: Task
    reward: float  #: sum over the turns
    stop_reason: str
    failure: str

    @property
    def won(self) -> bool:
        return self.reward == 1.0 and self.stop_reason == "done"

    @property
    def lost(self) -> bool:
        return self.reward == 0.0 and not self.failure


def play_as(env: Env, policy: Policy, index: int) -> Played:
    env.reset(seed=index, options={"index": index})
    task, reward = env.current_task, 0.0
    for turn in policy(env):
        _, gained, terminated, truncated, info = env.step(turn)
        reward += gained
        if terminated or truncated:
            return Played(task, reward, info["stop_reason"], info["failure"])
    raise AssertionError(f"the policy fell silent in {task.id}")
