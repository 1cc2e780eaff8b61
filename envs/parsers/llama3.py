"""Calls as Llama 3.1 and later write them: the turn is JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_json import read_call
from turntree.envs.parsers.turn import ParsedTurn, unreadable
from turntree.envs.tools.tool import Tool


class Llama3JsonParser:
    """``{"name": ..., "parameters": {...}}``, with ``;`` between several, and nothing else in the turn.

    ``<|python_tag|>`` may precede it. A turn that does not begin like such an object, or whose object has
    no ``name``, is not a call.

    Example:
        >>> Llama3JsonParser().parse('{"name": "now", "parameters": {}}').calls[0].name
        'now'
    """

    _TAG = "<|python_tag|>"
    _EXAMPLE = '{"name": "...", "parameters": {...}}'

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """Make the parser; the format needs no knowledge of ``tools``."""

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn of the policy."""
        tagged = text.strip().startswith(self._TAG)
        rest = text.strip().removeprefix(self._TAG).strip()
        if not tagged and not (rest.startswith("{") and '"name"' in rest):
            return ParsedTurn(content=text.strip())
        calls: list[ToolCall] = []
        while True:
            try:
                end = _end_of_object(rest)
                calls.append(read_call(rest[:end], arguments_key="parameters"))
            except ValueError as error:
                return unreadable(text, str(error), self._EXAMPLE)
            rest = rest[end:].lstrip()
            if not rest:
                return ParsedTurn(content="", calls=tuple(calls))
            if not rest.startswith(";"):
                return unreadable(text, f"expected ';' or the end after a call, got {rest[:40]!r}", self._EXAMPLE)
            rest = rest[1:].lstrip()

    def format_call(self, call: ToolCall) -> str:
        """Write a call in the form that ``parse`` reads."""
        return json.dumps({"name": call.name, "parameters": dict(call.arguments)}, ensure_ascii=False)


def _end_of_object(text: str) -> int:
    try:
        return json.JSONDecoder().raw_decode(text)[1]
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at character {error.pos})") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
