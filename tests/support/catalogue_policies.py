"""Policies that win every task of the catalogue, one an environment, and such that say nothing useful and win none."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from playing import call
from tables import table

from turntree.envs import Env, Task
from turntree.envs.math.calculator import one_operation_calculator
from turntree.envs.math.sets import MATH_SETS
from turntree.envs.repair.programs import find_program

Policy = Callable[[Env], Iterator[str]]
"""From an environment in an episode to the turns."""
HAND_OVER = "transfer_to_human_agents"
"""The tool of every service that hands a customer over to a person."""
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
    for user in re.findall(r"[a-z]+_[a-z]+_\d{4}", env.current_task.prompt)[:1]:
        yield call(env, "get_user_details", user_id=user)
    for order in re.findall(r"W\d{7}", env.current_task.prompt) if not env.current_task.metadata["actions"] else ():
        yield call(env, "get_order_details", order_id=f"#{order}")
    for action in env.current_task.metadata["actions"]:
        yield call(env, action["name"], **action["kwargs"])
    yield f"Done: {', '.join(env.current_task.metadata['outputs']) or 'I am sorry, nothing more is possible'}."


def repair(env: Env) -> Iterator[str]:
    facts = env.current_task.metadata
    fault = find_program(facts["program"]).faults[facts["fault"]]
    yield call(env, "edit", path=fault.path, old=fault.wrong, new=fault.right)
    yield "Done."


def follow(env: Env) -> Iterator[str]:
    for calls in env.current_task.metadata["path"]:
        yield from (call(env, one["name"], **one["arguments"]) for one in calls)
        yield "Done."


WINNERS: dict[str, Policy] = {
    "turntree/Arithmetic-v0": arithmetic,
    **{f"turntree/{name}-v0": hashed for name in ("GSM8K", "Countdown", "Game24")},
    **{f"turntree/{name}-v0": boxed for name in ("Equations", "UnitConversion")},
    **{f"turntree/{name}-v0": serve for name in ("RetailService", "AirlineService", "TauAirline")},
    "turntree/BFCL-v0": follow,
    "turntree/Repair-v0": repair,
    "turntree/NumberGuessing-v0": halve,
    "turntree/Adventure-v0": commands,
    "turntree/KeyValue-v0": set_all,
    "turntree/Search-v0": look_up,
    **{entry.env_id: boxed for entry in MATH_SETS},
    **{entry.tools_id: worked for entry in MATH_SETS},
}


def always(text: str) -> Policy:
    """Says the same in every turn."""
    return lambda env: itertools.repeat(text)


def hand_over(env: Env) -> Iterator[str]:
    """Hands a customer over at once; says nothing where there is nobody to hand over to."""
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
    """How an episode went."""

    task: Task
    reward: float
    """The sum over its turns."""
    stop_reason: str
    """As ``info`` says it."""
    failure: str
    """Empty unless the episode ended as a failure."""

    @property
    def won(self) -> bool:
        return self.reward == 1.0 and self.stop_reason == "done"

    @property
    def lost(self) -> bool:
        return self.reward == 0.0 and not self.failure


def play_as(env: Env, policy: Policy, index: int) -> Played:
    """One episode of a policy that speaks until it ends."""
    env.reset(seed=index, options={"index": index})
    task, reward = env.current_task, 0.0
    for turn in policy(env):
        _, gained, terminated, truncated, info = env.step(turn)
        reward += gained
        if terminated or truncated:
            return Played(task, reward, info["stop_reason"], info["failure"])
    raise AssertionError(f"the policy fell silent in {task.id}")
