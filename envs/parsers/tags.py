"""Calls in tags named after the tools, as search and code agents are often prompted to write them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_json import read_arguments
from turntree.envs.parsers.turn import ParsedTurn, unreadable
from turntree.envs.tools.tool import Tool


class TagsParser:
    """``<name>argument</name>`` for every tool, any number a turn; other tags are text.

    The argument of a tool with exactly one parameter, a text, is unquoted, without surrounding white space;
    other tools take a JSON object.
    """

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """Make the parser for calls of ``tools``."""
        self._text_parameter: dict[str, str | None] = {}
        for tool in tools:
            [*names] = tool.properties
            single = len(names) == 1 and tool.properties[names[0]].get("type") == "string"
            self._text_parameter[tool.name] = names[0] if single else None
        names_pattern = "|".join(map(re.escape, self._text_parameter)) or r"(?!)"
        self._open = re.compile(f"<({names_pattern})>")

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn of the policy."""
        content, calls, at = [], [], 0
        while (opened := self._open.search(text, at)) is not None:
            name = opened.group(1)
            end = text.find(f"</{name}>", opened.end())
            if end < 0:
                return unreadable(text, f"</{name}> is missing", self._example(name))
            body = text[opened.end() : end]
            try:
                calls.append(self._read(name, body))
            except ValueError as error:
                return unreadable(text, str(error), self._example(name))
            content.append(text[at : opened.start()])
            at = end + len(f"</{name}>")
        content.append(text[at:])
        return ParsedTurn(content="".join(content).strip(), calls=tuple(calls))

    def format_call(self, call: ToolCall) -> str:
        """Write a call in the form that ``parse`` reads."""
        parameter = self._text_parameter.get(call.name)
        value = call.arguments.get(parameter) if parameter is not None and len(call.arguments) == 1 else None
        body = value if isinstance(value, str) else json.dumps(dict(call.arguments), ensure_ascii=False)
        return f"<{call.name}>{body}</{call.name}>"

    def _read(self, name: str, body: str) -> ToolCall:
        parameter = self._text_parameter[name]
        arguments = read_arguments(body or "{}") if parameter is None else {parameter: body.strip()}
        return ToolCall(name=name, arguments=arguments)

    def _example(self, name: str) -> str:
        parameter = self._text_parameter[name]
        return f"<{name}>{'{...}' if parameter is None else parameter}</{name}>"
