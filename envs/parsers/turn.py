from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from turntree.envs.message import ToolCall


class OfferedTool(NamedTuple):
    """The part of a ``Tool`` that parsers read, from an OpenAI schema."""

    name: str
    properties: dict[str, Any]  #: JSON schema of each parameter, by name
    definitions: dict[str, Any]  #: schemas that the parameters refer to, by name

    @classmethod
    def of(cls, function: Mapping[str, Any]) -> Self:
        """Read the ``function`` of an OpenAI schema."""
        parameters = function["parameters"]
        named = {**(parameters.get("definitions") or {}), **(parameters.get("$defs") or {})}
        return cls(function["name"], parameters.get("properties") or {}, named)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """The parsed form of one turn of the policy."""

    content: str  #: the text around the calls, stripped
    calls: tuple[ToolCall, ...] = ()  #: in the order of the text; empty if there is an error
    error: str = ""  #: the reason why a call cannot be read, reported to the model; empty if there is none


class ToolParser(Protocol):
    """One format of tool calls.

    Optional attributes: ``special_tokens`` (bool) means that turns must keep the special tokens of the policy's
    vocabulary. ``openings`` lists texts with which a call may begin, other than the beginning of ``format_call``.
    """

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn of the policy; never raises."""

    def format_call(self, call: ToolCall) -> str:
        """Write a call in the form that ``parse`` reads.

        Raises:
            ValueError: If the format cannot express the call.
        """


def unreadable(text: str, reason: str, example: str) -> ParsedTurn:
    return ParsedTurn(content=text.strip(), error=f"malformed tool call: {reason}. Write it as {example}")
