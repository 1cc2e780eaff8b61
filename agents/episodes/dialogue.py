"""Dialogue states: keys (prompt, tool calls, task, environment) under which the draft store finds earlier turns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from turntree.agents.episodes.episode import Episode
from turntree.spec_tree import DialogueState


def canonical_call(call: Mapping[str, Any]) -> str:
    """Return a tool call (OpenAI dictionary) as text without the call's id; equal calls have equal text."""
    function = call["function"]
    return canonical_json([function["name"], function["arguments"]])


def canonical_json(value: Any) -> str:
    """Return a JSON value as text; equal values have equal text: ``1.0`` and ``1e0`` become ``1``, ``True`` does not.

    >>> canonical_json({"b": 1e3, "a": [True, "1", 0.5]})
    '{"a":[true,"1",0.5],"b":1000}'
    """
    values = json.loads(json.dumps(value), parse_float=_number)
    return json.dumps(values, sort_keys=True, separators=(",", ":"))


def _number(digits: str) -> int | float:
    # Use Decimal, because a float would lose digits of a large whole number.
    exact = Decimal(digits)
    return int(exact) if exact == exact.to_integral_value() else float(digits)


def dialogue_state(prompt_ids: Iterable[int], *, task_id: str, calls: Iterable[str], env_id: str) -> DialogueState:
    """Return the state before a turn with prompt ``prompt_ids``, shape (prompt,), and canonical ``calls``."""
    return DialogueState.from_tokens(prompt_ids, task=task_id, tools="".join(calls), env=env_id)


def dialogue_states(episode: Episode) -> list[DialogueState]:
    task_id = episode.task.id if episode.task is not None else ""
    position = len(episode.messages) - sum(1 + len(turn.observation) for turn in episode.turns)
    calls: list[str] = []
    states = []
    for turn in episode.turns:
        states.append(dialogue_state(turn.prompt_ids, task_id=task_id, calls=calls, env_id=episode.env_id))
        calls += [canonical_call(call.to_openai()) for call in episode.messages[position].tool_calls]
        position += 1 + len(turn.observation)
    return states
