from __future__ import annotations

import json
import re
from collections.abc import Sequence

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_json import read_object
from turntree.envs.parsers.call_scanner import ParsedCall, end_of_nested, read_marked
from turntree.envs.parsers.turn import ParsedTurn
from turntree.envs.tools.tool import Tool


class TagsParser:
    """``<name>argument</name>`` for every tool, any number per turn; often prompted from search and code agents.

    Tags that name no tool are text. The argument of a tool with exactly one string parameter is unquoted. The argument
    excludes a line break or a single space after the opening tag and white space before the closing tag, but includes
    indentation. All other calls contain a JSON object.
    """

    _LAYOUT = re.compile(r"\A(?:[ \t]*\r?\n| (?=\S))")

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._text_parameter: dict[str, str | None] = {}
        for tool in tools:
            [*names] = tool.properties
            single = len(names) == 1 and tool.properties[names[0]].get("type") == "string"
            self._text_parameter[tool.name] = names[0] if single else None
        names_pattern = "|".join(map(re.escape, self._text_parameter)) or r"(?!)"
        self._open = re.compile(f"<({names_pattern})>")

    def parse(self, text: str) -> ParsedTurn:
        return read_marked(text, self._open, self._read, lambda opened: self._example(opened.group(1)))

    def format_call(self, call: ToolCall) -> str:
        parameter = self._text_parameter.get(call.name)
        if parameter is not None and [*call.arguments] == [parameter]:
            plain = f"<{call.name}>{call.arguments[parameter]}</{call.name}>"
            if self.parse(plain).calls == (call,):
                return plain
        return f"<{call.name}>{json.dumps(dict(call.arguments), ensure_ascii=False)}</{call.name}>"

    def _read(self, text: str, opened: re.Match[str]) -> ParsedCall:
        name, closing = opened.group(1), f"</{opened.group(1)}>"
        parameter = self._text_parameter[name]
        try:
            arguments, end = read_object(text, opened.end())
            if not text.startswith(closing, end):
                raise ValueError(f"{closing} is missing")
            if parameter is None or ([*arguments] == [parameter] and isinstance(arguments[parameter], str)):
                return ParsedCall((ToolCall(name=name, arguments=arguments),), end + len(closing))
        except ValueError:
            if parameter is None and text[opened.end() :].lstrip().startswith(closing):
                return ParsedCall((ToolCall(name=name),), text.index(closing, opened.end()) + len(closing))
            if parameter is None:
                raise
        ends = end_of_nested(text, opened.end(), self._open, re.compile(re.escape(closing)))
        if ends is None:
            raise ValueError(f"{closing} is missing")
        argument = self._LAYOUT.sub("", text[opened.end() : ends.start()]).rstrip()
        return ParsedCall((ToolCall(name=name, arguments={parameter: argument}),), ends.end())

    def _example(self, name: str) -> str:
        parameter = self._text_parameter[name]
        return f"<{name}>{'{...}' if parameter is None else parameter}</{name}>"
