from __future__ import annotations

import re
from collections.abc import Sequence

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_scanner import call_candidates
from turntree.envs.parsers.turn import ParsedTurn
from turntree.envs.tools.tool import Tool
from turntree.rewards.reading.thoughts import next_thought


class CompactParser:
    """Calls for tiny policies, in the fewest tokens: the whole turn is ``name(argument)``, apart from thoughts.

    The tool must have exactly one parameter, a string. Everything between the first ``(`` and the last ``)`` is the
    argument, unquoted. A turn of any other form, or with an unknown name, is not a call.
    """

    _CALL = re.compile(r"\s*(\w+)\((.*)\)\s*", re.DOTALL)

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._parameters = {
            tool.name: parameter
            for tool in tools
            for parameter, schema in tool.properties.items()
            if len(tool.properties) == 1 and schema.get("type") == "string"
        }

    def parse(self, text: str) -> ParsedTurn:
        read = [match.groups() for words in call_candidates(text) if (match := self._CALL.fullmatch(words))]
        read = [(name, argument) for name, argument in read if name in self._parameters]
        if not read:
            return ParsedTurn(content=text.strip())
        name, argument = next((one for one in read if not _ends_thought(one[1])), read[0])
        return ParsedTurn(content="", calls=(ToolCall(name=name, arguments={self._parameters[name]: argument}),))

    def format_call(self, call: ToolCall) -> str:
        values = list(call.arguments.values())
        if len(values) != 1 or not isinstance(values[0], str):
            raise ValueError(
                f"the compact format writes calls with one string argument, got {dict(call.arguments)!r}; "
                "use the hermes format"
            )
        return f"{call.name}({values[0]})"


def _ends_thought(text: str) -> bool:
    span = next_thought(text)
    return span is not None and not span.opened
