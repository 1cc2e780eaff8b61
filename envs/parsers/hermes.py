"""Calls as Hermes and the chat models of Qwen write them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_json import read_call
from turntree.envs.parsers.turn import ParsedTurn, unreadable
from turntree.envs.tools.tool import Tool


class HermesParser:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, any number a turn.

    Example:
        >>> HermesParser().parse('<tool_call>{"name": "now", "arguments": {}}</tool_call>').calls[0].name
        'now'
    """

    _OPEN, _CLOSE = "<tool_call>", "</tool_call>"
    _EXAMPLE = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """Make the parser; the format needs no knowledge of ``tools``."""

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn of the policy."""
        if self._OPEN not in text:
            return ParsedTurn(content=text.strip())
        before, *blocks = text.split(self._OPEN)
        content, calls = [before], []
        for block in blocks:
            body, closed, after = block.partition(self._CLOSE)
            if not closed:
                return unreadable(text, f"{self._CLOSE} is missing", self._EXAMPLE)
            try:
                calls.append(read_call(body))
            except ValueError as error:
                return unreadable(text, str(error), self._EXAMPLE)
            content.append(after)
        return ParsedTurn(content="".join(content).strip(), calls=tuple(calls))

    def format_call(self, call: ToolCall) -> str:
        """Write a call in the form that ``parse`` reads."""
        body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
        return f"{self._OPEN}\n{body}\n{self._CLOSE}"
