"""A played dialogue as the ``Trace`` that tasks of the verifiers library score."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from turntree.envs.bridges.missing import library
from turntree.envs.errors import DataError
from turntree.envs.message import Message, Role
from turntree.envs.parsers import ToolParser


def content_text(content: Any) -> str:
    """The text of a message's content, which may come in parts.

    Raises:
        DataError: If a part is no text.
    """
    if isinstance(content, str) or content is None:
        return content or ""
    texts: list[Any] = [part.get("text") if isinstance(part, dict) else getattr(part, "text", None) for part in content]
    if None in texts:
        raise DataError(f"this bridge plays text; a prompt has a part of another kind: {content!r:.200}")
    return "\n".join(texts)


def played_messages(messages: Sequence[Message], parser: ToolParser) -> list[Any]:
    """The messages of an episode as those of verifiers: calls apart from words, thoughts apart from the answer."""
    vf = library("verifiers.v1", "verifiers")
    played: list[Any] = []
    asked = 0
    for number, message in enumerate(messages):
        if message.role is Role.ASSISTANT:
            calls = [
                vf.ToolCall(
                    id=call.id or f"call_{number}_{at}", name=call.name, arguments=json.dumps(dict(call.arguments))
                )
                for at, call in enumerate(message.tool_calls)
            ]
            words = parser.parse(message.content).content if calls else message.content
            thought, mark, answer = words.rpartition("</think>")
            asked = number
            played.append(
                vf.AssistantMessage(
                    content=answer if mark else words,
                    reasoning_content=thought.removeprefix("<think>") if mark else None,
                    tool_calls=calls or None,
                )
            )
        elif message.role is Role.TOOL:
            id = message.tool_call_id or f"call_{asked}_{number - asked - 1}"
            played.append(vf.ToolMessage(tool_call_id=id, content=message.content, name=message.name or None))
        else:
            kind = vf.SystemMessage if message.role is Role.SYSTEM else vf.UserMessage
            played.append(kind(content=message.content))
    return played


def trace_of(row: Any, messages: Sequence[Any], state: Any = None) -> Any:
    """A trace of one dialogue.

    Args:
        row: The task, as verifiers made it.
        messages: Its dialogue, shape (messages,).
        state: The state that the task's tools have written; ``None`` for a new one.
    """
    vf, states = library("verifiers.v1", "verifiers"), library("verifiers.v1.state", "verifiers")
    task = vf.TraceTask(type=type(row).__name__, data=row.data, key=row.key, hash=row.hash)
    agent = vf.AgentInfo(config=vf.AgentConfig())
    trace = vf.Trace(task=task, agent=agent, state=state or states.state_cls(type(row))(), is_completed=True)
    for number, message in enumerate(messages):
        parent = number - 1 if number else None
        trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=message.role == "assistant"))
    return trace
