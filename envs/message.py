"""Messages of a dialogue, convertible from and to OpenAI's chat format without loss. No token ids, no templates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from turntree.rewards.reading.thoughts import without_thoughts


class Role(StrEnum):
    """Who wrote a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """The policy's request to run one tool."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)  #: keyword arguments, JSON values
    id: str = ""  #: the ``tool_call_id`` of the tool message that answers; empty if the format has no ids

    def to_openai(self) -> dict[str, Any]:
        """Return an entry of OpenAI's ``tool_calls``; arguments stay a mapping, as chat templates expect."""
        entry: dict[str, Any] = {"type": "function", "function": {"name": self.name, "arguments": dict(self.arguments)}}
        if self.id:
            entry["id"] = self.id
        return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a dialogue."""

    role: Role
    #: of the policy: exactly the sampled text, including tool calls. If the prompt has already opened a thought, the
    #: opening mark of that thought comes first
    content: str
    tool_calls: tuple[ToolCall, ...] = ()  #: parsed from ``content`` (assistant only)
    tool_call_id: str = ""  #: the call that a tool message answers
    name: str = ""  #: name of the tool that answered (tool only)

    @property
    def spoken(self) -> str:
        """The text without thoughts, which is what environments act on."""
        return without_thoughts(self.content)[0]

    def to_openai(self) -> dict[str, Any]:
        """Return the message in OpenAI's format, without empty optional fields."""
        message: dict[str, Any] = {"role": str(self.role), "content": self.content}
        if self.tool_calls:
            message["tool_calls"] = [call.to_openai() for call in self.tool_calls]
        if self.tool_call_id:
            message["tool_call_id"] = self.tool_call_id
        if self.name:
            message["name"] = self.name
        return message

    @classmethod
    def from_openai(cls, message: Mapping[str, Any]) -> Message:
        """Read a message in OpenAI's format.

        Raises:
            ValueError: If ``role`` is missing or unknown.
        """
        role = message.get("role")
        if role not in list(Role):
            expected = ", ".join(Role)
            raise ValueError(f"a message needs a role, one of {expected}; got {role!r} in {message!r}")
        calls = tuple(
            ToolCall(
                name=entry["function"]["name"], arguments=entry["function"].get("arguments", {}), id=entry.get("id", "")
            )
            for entry in message.get("tool_calls") or ()
        )
        return cls(
            role=Role(role),
            content=message.get("content") or "",
            tool_calls=calls,
            tool_call_id=message.get("tool_call_id", ""),
            name=message.get("name", ""),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The environment's answer to a turn that calls no tool."""

    messages: Sequence[Message] = ()  #: new messages; may be empty if this reply ends the episode
    reward: float = 0.0  #: reward of the turn
    done: bool = False  #: whether the task ends the episode
    #: named components, only for logs and metrics; training uses ``reward``
    rewards: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.reward) and all(map(math.isfinite, self.rewards.values()))):
            named = {"reward": self.reward, **self.rewards}
            name = next(name for name, value in named.items() if not math.isfinite(value))
            raise ValueError(f"reward {name!r} must be a finite number, got {named[name]!r}")
        for message in self.messages:
            if not isinstance(message, Message):
                raise TypeError(f"Reply.messages must hold Message objects, got {message!r}")
