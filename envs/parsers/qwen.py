"""Calls as Qwen3-Coder and Qwen3.5 write them: tags for the function and each parameter."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from turntree.envs.message import ToolCall
from turntree.envs.parsers.finding import Found, end_of_nested, read_marked
from turntree.envs.parsers.turn import ParsedTurn
from turntree.envs.parsers.typed_text import read_typed
from turntree.envs.tools.tool import Tool


class QwenXmlParser:
    """``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>``, any number a turn.

    A value is text. Where the tool's schema expects anything but text it is read as JSON; a value that is not
    JSON stays text, and the tool rejects it. Marks of the format in a value are text: pairs of them, and what does not
    fit where it stands.

    Example:
        >>> QwenXmlParser().parse("<tool_call><function=now></function></tool_call>").calls[0].name
        'now'
    """

    _OPEN, _CLOSE = "<tool_call>", "</tool_call>"
    _EXAMPLE = "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"
    _OPENING = re.compile(re.escape(_OPEN))
    _FUNCTION = re.compile(r"\s*<function=([^<>\s]+)>")
    _CALL, _CALL_END = re.compile(rf"{_OPEN}{_FUNCTION.pattern}"), re.compile(rf"</function>\s*{_CLOSE}")
    _PARAMETER, _PARAMETER_END = re.compile(r"<parameter=([^<>\s]+)>"), re.compile(r"</parameter>\s*")

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """Make the parser; the schemas of ``tools`` determine which values are not text."""
        self._schemas = {tool.name: tool.properties for tool in tools}
        self._definitions = {tool.name: tool.definitions for tool in tools}

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn of the policy."""
        return read_marked(text, self._OPENING, self._read, lambda opened: self._EXAMPLE)

    def format_call(self, call: ToolCall) -> str:
        """Write a call in the form that ``parse`` reads."""
        lines = [self._OPEN, f"<function={call.name}>"]
        for name, value in call.arguments.items():
            written = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            lines += [f"<parameter={name}>", written, "</parameter>"]
        return "\n".join([*lines, "</function>", self._CLOSE])

    def _read(self, text: str, opened: re.Match[str]) -> Found:
        function = self._FUNCTION.match(text, opened.end())
        ends = None if function is None else end_of_nested(text, function.end(), self._CALL, self._CALL_END)
        if function is None or ends is None:
            closed = text.find(self._CLOSE, opened.end()) >= 0
            raise ValueError(
                "expected <function=NAME> ... </function> in <tool_call>" if closed else f"{self._CLOSE} is missing"
            )
        return Found(self._call(function.group(1), text[function.end() : ends.start()].strip()), ends.end())

    def _call(self, name: str, body: str) -> ToolCall:
        schemas = self._schemas.get(name, {})
        written: dict[str, str] = {}
        at = 0
        while at < len(body):
            opened = self._PARAMETER.match(body, at)
            ends = opened and end_of_nested(body, opened.end(), self._PARAMETER, self._PARAMETER_END, thoughts=False)
            if opened is None or ends is None:
                raise ValueError(f"expected <parameter=KEY> ... </parameter>, got {body[at : at + 40]!r}")
            if opened.group(1) in written:
                raise ValueError(f"<parameter={opened.group(1)}> stands twice")
            written[opened.group(1)] = body[opened.end() : ends.start()].removeprefix("\n").removesuffix("\n")
            at = ends.end()
        for value in written.values():
            names = self._PARAMETER.findall(value)
            if len(names) > len(self._PARAMETER_END.findall(value)):
                for missing in names:
                    if missing not in written and (missing in schemas or name not in self._schemas):
                        raise ValueError(f"</parameter> is missing before <parameter={missing}>")
        definitions = self._definitions.get(name, {})
        arguments = {key: read_typed(value, schemas.get(key, {}), definitions) for key, value in written.items()}
        return ToolCall(name=name, arguments=arguments)
