"""What a task's own calls lead to, and whether the policy's lead there too.

The rules are the benchmark's: after a turn the states are equal, and each result of the turn's own calls is among those
that the policy has got so far. Results are compared as values, so that 1 is 1.0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from turntree.envs.bfcl.apis import APIS, tools_of
from turntree.envs.bfcl.simulated.simulator import Simulator, copied
from turntree.envs.message import Message, Role, ToolCall
from turntree.envs.running.executor import ToolExecutor
from turntree.envs.task import Task
from turntree.envs.tools.tool_run import answer, prepare


class Expected(NamedTuple):
    """A turn as the task's own calls leave it."""

    results: list[Any]
    """Of the calls of this turn."""
    states: Mapping[str, Any]
    """Of each API after it, by name."""


def begun(simulator: Simulator, name: str, task: Task) -> Simulator:
    """An API in the state with which a task begins."""
    simulator.load(task.metadata["world"].get(name, {}))
    return simulator


def expected(task: Task, executor: ToolExecutor) -> list[Expected]:
    """Every turn of a task, played by its own calls in a world of their own.

    Args:
        task: A task of ``BFCL``.
        executor: Runs the calls as it runs the policy's, so that long results are cut alike.
    """
    apis = {name: begun(APIS[name](), name, task) for name in task.metadata["apis"]}
    owners = {tool.name: api for api in apis.values() for tool in api.tools}
    tools = tools_of(tuple(apis), frozenset())
    turns: list[Expected] = []
    states: dict[str, Any] = {}
    for calls in task.metadata["path"]:
        asked = [ToolCall(name=call["name"], arguments=call["arguments"]) for call in calls]
        outcomes = executor.run([prepare(call, tools, owners=owners) for call in asked])
        results = [_value(answer(call, outcome)) for call, outcome in zip(asked, outcomes, strict=True)]
        changed = {name: copied(api.state) for name, api in apis.items() if api.state != states.get(name)}
        states = {**states, **changed}
        turns.append(Expected(results, states))
    return turns


def results_in(dialogue: Sequence[Message]) -> list[Any]:
    """What the tools have returned to the policy."""
    return [_value(message) for message in dialogue if message.role is Role.TOOL and message.name]


def contains(got: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """Whether all wanted results are among those got, each as often.

    >>> contains([{"a": 1.0}, "b"], ["b", {"a": 1}]), contains(["b"], ["b", "b"])
    (True, False)
    """
    left = list(got)
    for result in wanted:
        if result not in left:
            return False
        left.remove(result)
    return True


def _value(message: Message) -> Any:
    """A result as a value; a text where it is no JSON."""
    try:
        return json.loads(message.content)
    except ValueError:
        return message.content
