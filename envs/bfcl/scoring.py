"""Compare the policy's results and states with those of the task's own calls.

The rules are the benchmark's: after a turn the states must be equal, and each result of the turn's own calls must be
among the results that the policy has received so far, letter for letter.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from turntree.envs.bfcl.apis import tools_of
from turntree.envs.bfcl.world import World
from turntree.envs.message import Message, Role, ToolCall
from turntree.envs.running.executor import ToolExecutor
from turntree.envs.task import Task
from turntree.envs.tools.tool_run import answer, prepare


class Expected(NamedTuple):
    results: list[str]  #: of the calls of this turn
    states: Mapping[str, Any]  #: of each API after this turn, by name


def expected(task: Task, beginning: bytes, executor: ToolExecutor) -> list[Expected]:
    """Play a task's own calls in a separate world and return what each turn should lead to.

    ``executor`` must be configured as the policy's, so that long results are truncated alike.
    """
    world = World()
    world.begin(beginning)
    owners = dict.fromkeys((tool.name for tool in world.tools), world)
    tools = tools_of(tuple(task.metadata["apis"]), frozenset())
    turns: list[Expected] = []
    states: dict[str, Any] = {}
    for calls in task.metadata["path"]:
        asked = [ToolCall(name=call["name"], arguments=call["arguments"]) for call in calls]
        outcomes = executor.run([prepare(call, tools, owners=owners) for call in asked])
        results = [answer(call, outcome).content for call, outcome in zip(asked, outcomes, strict=True)]
        changed = {name: state for name, state in world.states().items() if state != states.get(name)}
        states = {**states, **pickle.loads(pickle.dumps(changed))}
        turns.append(Expected(results, states))
    return turns


def results_in(dialogue: Sequence[Message]) -> list[str]:
    return [message.content for message in dialogue if message.role is Role.TOOL and message.name]


def contains(got: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether all wanted results are among those received, each as often.

    >>> contains(["a", "b"], ["b", "a"]), contains(["b"], ["b", "b"])
    (True, False)
    """
    left = list(got)
    for result in wanted:
        if result not in left:
            return False
        left.remove(result)
    return True
