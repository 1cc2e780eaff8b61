"""One message of a dialogue, in the form of the OpenAI chat format.

Invariant: a ``Message`` survives ``from_openai(to_openai())`` unchanged. It
knows nothing of token ids or chat templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from turntree.rewards.reading.thoughts import without_thoughts


class Role(StrEnum):
    """The participant of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A request of the policy to run one tool."""

    name: str
    """Name of the tool."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments, JSON values."""
    id: str = ""
    """Identifier that a tool message answers to; empty where the format has none."""

    def to_openai(self) -> dict[str, Any]:
        """The call as an OpenAI ``tool_calls`` entry; arguments stay a mapping, as chat templates expect."""
        entry: dict[str, Any] = {"type": "function", "function": {"name": self.name, "arguments": dict(self.arguments)}}
        if self.id:
            entry["id"] = self.id
        return entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a dialogue."""

    role: Role
    """Participant."""
    content: str
    """Text; for the policy exactly the text that it sampled, tool calls included, behind what its prompt had opened of
    a thought."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Calls parsed from ``content`` (assistant only)."""
    tool_call_id: str = ""
    """The call that a tool message answers."""
    name: str = ""
    """Name of the tool that answered (tool only)."""

    @property
    def spoken(self) -> str:
        """The text without thoughts: what an environment acts on."""
        return without_thoughts(self.content)[0]

    def to_openai(self) -> dict[str, Any]:
        """The message as an OpenAI dictionary; empty optional fields are left out."""
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
        """Read an OpenAI message.

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
