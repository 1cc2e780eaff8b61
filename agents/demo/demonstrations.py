"""Dialogues on which the demo policy is warm-started, most of them wrong on purpose.

The dialogues teach the dialogue format; reinforcement learning has to find the right way to calculate. Invariant: a
right demonstration scores 1 and any other demonstration 0. ``rollout`` plays the demonstrations, so that their prompts
and turns have the same tokens as in training.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.episodes.episode import Episode
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.envs import Env, Limits, Task, ToolCall, make

SPLIT = "warm-start"  #: split of the demonstrations' tasks, not used for training
#: environment of the tiny policy's training, as in ``configs/demo.yaml``
ENV_KWARGS: Mapping[str, Any] = {
    "tool_format": "compact",
    "system_prompt": "",
    "describes_tools": True,
    "max_numbers": 4,
    "long_every": 16,
    "long_numbers": 10,
    "limits": {"max_turns": 12, "max_turn_tokens": 16},
}
_OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


class Kind(StrEnum):
    RIGHT = "right"  #: products first, then sums; the value is the answer
    LEFT_TO_RIGHT = "left_to_right"  #: calculates from left to right, in tasks where this gives a wrong value
    EARLY = "early"  #: calculates correctly, but answers with an intermediate result


SHARES = {Kind.RIGHT: 0.30, Kind.LEFT_TO_RIGHT: 0.15, Kind.EARLY: 0.55}  #: fraction of each kind


class Demonstration(NamedTuple):
    kind: Kind
    episode: Episode


class Operation(NamedTuple):
    expression: str
    result: int


def demonstrations(
    tokenizer: Any, *, count: int, seed: int = 0, env_kwargs: Mapping[str, Any] = ENV_KWARGS
) -> list[Demonstration]:
    """Play ``count`` demonstrations.

    Args:
        seed: Seed of kinds and tasks; the same seed gives the same dialogues.
        env_kwargs: Settings of the arithmetic environment.
    """
    settings = {**env_kwargs, "limits": Limits(**env_kwargs["limits"]), "split": SPLIT}
    env = make("turntree/Arithmetic-v0", **settings)
    return asyncio.run(_play(env, Renderer(tokenizer), count, random.Random(seed)))


def operations(expression: str, *, precedence: bool = True) -> list[Operation]:
    """Return the calls that evaluate ``expression``, one operation each.

    Args:
        expression: Numbers separated by ``+``, ``-`` or ``*``.
        precedence: Whether products come first; otherwise left to right.

    >>> [call.expression for call in operations("2+3*4-1")]
    ['3*4', '2+12', '14-1']
    >>> [call.expression for call in operations("2+3*4-1", precedence=False)]
    ['2+3', '5*4', '20-1']
    """
    numbers = [int(number) for number in re.findall(r"\d+", expression)]
    operators = re.findall(r"[-+*]", expression)
    calls = []
    while operators:
        position = operators.index("*") if precedence and "*" in operators else 0
        left, right = numbers[position : position + 2]
        result = _OPERATIONS[operators[position]](left, right)
        calls.append(Operation(f"{left}{operators.pop(position)}{right}", result))
        numbers[position : position + 2] = [result]
    return calls


async def _play(env: Env, renderer: Renderer, count: int, rng: random.Random) -> list[Demonstration]:
    tasks = map(env.task, itertools.count(rng.randrange(2**31)))
    kinds = rng.choices(list(SHARES), list(SHARES.values()), k=count)
    played = []
    for kind in kinds:
        for task in tasks:
            calls = _calls(task, kind, rng)
            answer = str(calls[-1].result) if calls else re.split(r"\D", task.prompt)[0]
            if (kind is Kind.RIGHT) == (answer == task.answer):
                break
        texts = [
            env.parser.format_call(ToolCall(name="calculator", arguments={"expression": call.expression}))
            for call in calls
        ]
        engine = ScriptedEngine([*texts, f"#### {answer}"], renderer.tokenizer)
        played.append(Demonstration(kind, await rollout(env, engine, renderer, task=task)))
    env.close()
    return played


def _calls(task: Task, kind: Kind, rng: random.Random) -> list[Operation]:
    calls = operations(task.prompt, precedence=kind is not Kind.LEFT_TO_RIGHT)
    return calls[: rng.randrange(len(calls))] if kind is Kind.EARLY else calls
