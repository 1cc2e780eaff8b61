from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_json import ARGUMENT_KEYS, read_call, read_value
from turntree.envs.parsers.call_scanner import call_candidates
from turntree.envs.parsers.turn import ParsedTurn, unreadable
from turntree.envs.tools.tool import Tool


class Llama3JsonParser:
    """Llama 3.1 and later: the turn is ``{"name": ..., "parameters": {...}}``, apart from thoughts.

    Several calls are separated by ``;``, and ``<|python_tag|>`` may precede them. A turn that does not begin like such
    an object is not a call, nor is an object that has no parameters and names no tool.

    Example:
        >>> Llama3JsonParser().parse('{"name": "now", "parameters": {}}').calls[0].name
        'now'
    """

    _TAG = "<|python_tag|>"
    _EXAMPLE = '{"name": "...", "parameters": {...}}'

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._names = [tool.name for tool in tools]

    def parse(self, text: str) -> ParsedTurn:
        for words in call_candidates(text):
            try:
                calls, wrong = self._read(words), ""
            except ValueError as error:
                calls, wrong = [], str(error)
            if calls:
                return ParsedTurn(content="", calls=tuple(calls))
        return unreadable(text, wrong, self._EXAMPLE) if wrong else ParsedTurn(content=text.strip())

    def format_call(self, call: ToolCall) -> str:
        return json.dumps({"name": call.name, "parameters": dict(call.arguments)}, ensure_ascii=False)

    def _read(self, words: str) -> list[ToolCall]:
        rest = words.strip().removeprefix(self._TAG).strip()
        tagged = rest != words.strip()
        if not tagged and not (rest.startswith("{") and '"name"' in rest):
            return []
        calls: list[ToolCall] = []
        at = -1
        while at < len(rest):
            value, at = read_value(rest, at + 1)
            if not (calls or tagged or self._is_call(value)):
                return []
            calls.append(read_call(value, arguments_key="parameters"))
            if at < len(rest) and rest[at] != ";":
                raise ValueError(f"expected ';' or the end after a call, got {rest[at : at + 40]!r}")
        return calls

    def _is_call(self, value: dict[str, Any]) -> bool:
        return "name" in value and (value["name"] in self._names or any(key in value for key in ARGUMENT_KEYS))
