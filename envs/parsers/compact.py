"""Calls for tiny policies, in the fewest possible tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_scanner import call_candidates
from turntree.envs.parsers.turn import ParsedTurn
from turntree.envs.tools.tool import Tool
from turntree.rewards.reading.thoughts import next_thought


class CompactParser:
    """The whole turn, thoughts apart, is ``name(argument)``: one call of a tool with exactly one string parameter.

    Everything between the first ``(`` and the last ``)`` is the argument, unquoted.
    A turn of any other form, or with an undeclared name, is not a call.
    """

    _CALL = re.compile(r"\s*(\w+)\((.*)\)\s*", re.DOTALL)

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """Make the parser for calls of ``tools``; those with other parameters cannot be called."""
        self._parameters = {
            tool.name: parameter
            for tool in tools
            for parameter, schema in tool.properties.items()
            if len(tool.properties) == 1 and schema.get("type") == "string"
        }

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn of the policy."""
        read = [match.groups() for words in call_candidates(text) if (match := self._CALL.fullmatch(words))]
        read = [(name, argument) for name, argument in read if name in self._parameters]
        if not read:
            return ParsedTurn(content=text.strip())
        name, argument = next((one for one in read if not _ends_thought(one[1])), read[0])
        return ParsedTurn(content="", calls=(ToolCall(name=name, arguments={self._parameters[name]: argument}),))

    def format_call(self, call: ToolCall) -> str:
        """Write a call in the form that ``parse`` reads.

        Raises:
            ValueError: If the call does not have exactly one argument, a string.
        """
        values = list(call.arguments.values())
        if len(values) != 1 or not isinstance(values[0], str):
            raise ValueError(
                f"the compact format writes calls with one string argument, got {dict(call.arguments)!r}; "
                "use the hermes format"
            )
        return f"{call.name}({values[0]})"


def _ends_thought(text: str) -> bool:
    """Whether a text ends a thought that it does not begin."""
    span = next_thought(text)
    return span is not None and not span.opened
