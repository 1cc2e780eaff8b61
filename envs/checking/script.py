"""Scripted dialogues for checks: the same script must lead to the same transcript.

A script need not solve the task. It should reach the tools and the environment's own reply.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turntree.envs.env import Env
from turntree.envs.message import ToolCall
from turntree.envs.tools.tool import Tool

MAX_STEPS = 24  #: turns after which an episode is abandoned if it has not ended
_WORDS = ("Let me think.", "3", "#### 2", r"The answer is \boxed{1}.", "")
_SAMPLE_VALUES: Mapping[str, Any] = {
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of ``reset`` or ``step``."""

    observation: str
    reward: float = 0.0  #: 0 for ``reset``
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any]

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


def script_for(env: Env) -> tuple[str, ...]:
    """Return a script that calls each tool of the environment once and then plays a few plain turns."""
    return (*calls_of(env, env.tools), *_WORDS)


def calls_of(env: Env, tools: Sequence[Tool], text: str = "1+1") -> list[str]:
    """Write a call of each tool as the policy would; string arguments are ``text``."""
    values = {**_SAMPLE_VALUES, "string": text}
    calls = [ToolCall(name=tool.name, arguments=_arguments(tool.schema, values)) for tool in tools]
    return [env.parser.format_call(call) for call in calls]


def begin(env: Env, *, seed: int | None) -> Step:
    observation, info = env.reset(seed=seed)
    return Step(observation=observation, info=info)


def take(env: Env, turns: Sequence[str], *, first: int = 0, last: int = MAX_STEPS) -> list[Step]:
    """Continue the episode until it ends or ``last`` turns have been played; a short script is repeated.

    Args:
        turns: The script, shape (turns,).
        first: Number of turns played before.
        last: Maximum number of turns of the episode, including the ``first`` turns.
    """
    steps: list[Step] = []
    for number in range(first, last):
        observation, reward, terminated, truncated, info = env.step(turns[number % len(turns)])
        steps.append(
            Step(observation=observation, reward=reward, terminated=terminated, truncated=truncated, info=info)
        )
        if steps[-1].ended:
            break
    return steps


def play(env: Env, turns: Sequence[str], *, seed: int | None) -> list[Step]:
    """Play a whole episode, including ``reset``."""
    return [begin(env, seed=seed), *take(env, turns)]


def difference(expected: Sequence[Step], got: Sequence[Step]) -> str:
    """Return the first difference of two transcripts in one line; empty if they are equal."""
    for number, (before, after) in enumerate(zip(expected, got, strict=False)):
        for name in ("observation", "reward", "terminated", "truncated", "info"):
            old, new = getattr(before, name), getattr(after, name)
            if old != new:
                return f"step {number}: {name} is {_short(new)}, was {_short(old)}"
    if len(expected) != len(got):
        return f"{len(got)} steps, expected {len(expected)}"
    return ""


def _arguments(schema: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    parameters = schema["function"]["parameters"]
    return {name: _sample_value(parameters["properties"][name], values) for name in parameters.get("required", ())}


def _sample_value(schema: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "string")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "array" and "prefixItems" in schema:
        return [_sample_value(member, values) for member in schema["prefixItems"]]
    return values[kind]


def _short(value: Any) -> str:
    text = json.dumps(value, default=repr) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
