from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

from turntree.envs.message import ToolCall


class OfferedTool(NamedTuple):
    """The part of a ``Tool`` that parsers need, read from its OpenAI schema."""

    name: str
    properties: dict[str, Any]  #: parameter's name -> its JSON schema
    definitions: dict[str, Any]  #: name -> schema that parameters refer to with ``$ref``

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
    error: str = ""  #: the reason why a call cannot be read, reported to the model; empty if there is no error


class ToolParser(Protocol):
    """One format of tool calls.

    Optional attributes: ``special_tokens`` is true if ``parse`` needs the special tokens in the turn's text.
    ``openings`` lists texts with which a call may begin, besides the beginning of a call by ``format_call``.
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
