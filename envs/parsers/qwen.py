"""Calls as Qwen3-Coder and Qwen3.5 write them: tags for the function and each parameter."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_json import read_json
from turntree.envs.parsers.turn import ParsedTurn, unreadable
from turntree.envs.tools.tool import Tool

_PYTHON_WORDS = {"True": True, "False": False, "None": None}


class QwenXmlParser:
    """``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>``, any number a turn.

    A value is text. Where the tool's schema expects anything but text it is read as JSON; a value that is not
    JSON stays text, and the tool rejects it.

    Example:
        >>> QwenXmlParser().parse("<tool_call><function=now></function></tool_call>").calls[0].name
        'now'
    """

    _OPEN, _CLOSE = "<tool_call>", "</tool_call>"
    _EXAMPLE = "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"
    _FUNCTION = re.compile(r"\s*<function=([^<>\s]+)>(.*)</function>\s*", re.DOTALL)
    _PARAMETER = re.compile(r"\s*<parameter=([^<>\s]+)>(.*?)</parameter>\s*(?=<parameter=|\Z)", re.DOTALL)

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """Make the parser; the schemas of ``tools`` determine which values are not text."""
        self._schemas = {tool.name: tool.properties for tool in tools}

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn of the policy."""
        before, *blocks = text.split(self._OPEN)
        content, calls = [before], []
        for block in blocks:
            body, closed, after = block.rpartition(self._CLOSE)
            if not closed:
                return unreadable(text, f"{self._CLOSE} is missing", self._EXAMPLE)
            try:
                calls.append(self._read(body))
            except ValueError as error:
                return unreadable(text, str(error), self._EXAMPLE)
            content.append(after)
        return ParsedTurn(content="".join(content).strip(), calls=tuple(calls))

    def format_call(self, call: ToolCall) -> str:
        """Write a call in the form that ``parse`` reads."""
        lines = [self._OPEN, f"<function={call.name}>"]
        for name, value in call.arguments.items():
            written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines += [f"<parameter={name}>", written, "</parameter>"]
        return "\n".join([*lines, "</function>", self._CLOSE])

    def _read(self, body: str) -> ToolCall:
        function = self._FUNCTION.fullmatch(body)
        if function is None:
            raise ValueError("expected <function=NAME> ... </function> in <tool_call>")
        name, rest = function.groups()
        schemas = self._schemas.get(name, {})
        arguments: dict[str, Any] = {}
        rest = rest.strip()
        while rest:
            parameter = self._PARAMETER.match(rest)
            if parameter is None:
                raise ValueError(f"expected <parameter=KEY> ... </parameter>, got {rest[:40]!r}")
            key, value = parameter.groups()
            arguments[key] = _value(value.removeprefix("\n").removesuffix("\n"), schemas.get(key, {}))
            rest = rest[parameter.end() :]
        return ToolCall(name=name, arguments=arguments)


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    kinds = schema.get("type", "string" if not schema or "anyOf" not in schema else [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds == ["string"] and not schema.get("nullable"):
        return text
    if text.strip() in _PYTHON_WORDS:
        return _PYTHON_WORDS[text.strip()]
    try:
        value = read_json(text)
    except ValueError:
        return text
    return text if isinstance(value, str) or ("string" in kinds and value is not None) else value
