from __future__ import annotations

import json
import re
from collections.abc import Sequence

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_json import read_call, read_value
from turntree.envs.parsers.call_scanner import ParsedCall, read_marked
from turntree.envs.parsers.turn import ParsedTurn
from turntree.envs.tools.tool import Tool


class HermesParser:
    """Hermes and Qwen: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, any number per turn.

    Example:
        >>> HermesParser().parse('<tool_call>{"name": "now", "arguments": {}}</tool_call>').calls[0].name
        'now'
    """

    _OPEN, _CLOSE = "<tool_call>", "</tool_call>"
    _EXAMPLE = '<tool_call>{"name": "...", "arguments": {...}}</tool_call>'
    _OPENING = re.compile(re.escape(_OPEN))

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """Make the parser; the format needs no knowledge of ``tools``."""

    def parse(self, text: str) -> ParsedTurn:
        return read_marked(text, self._OPENING, self._read, lambda opened: self._EXAMPLE)

    def format_call(self, call: ToolCall) -> str:
        body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
        return f"{self._OPEN}\n{body}\n{self._CLOSE}"

    def _read(self, text: str, opened: re.Match[str]) -> ParsedCall:
        value, end = read_value(text, opened.end())
        call = read_call(value)
        if not text.startswith(self._CLOSE, end):
            raise ValueError(f"{self._CLOSE} is missing" + (f" before {text[end : end + 40]!r}" if text[end:] else ""))
        return ParsedCall((call,), end + len(self._CLOSE))
