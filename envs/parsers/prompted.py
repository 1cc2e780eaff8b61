"""Formats that no model's chat template has; a prompt must explain them to the policy."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_json import read_object
from turntree.envs.parsers.call_scanner import ParsedCall, call_candidates, end_of_nested, read_marked
from turntree.envs.parsers.turn import ParsedTurn
from turntree.envs.tools.tool import Tool
from turntree.rewards.reading.thoughts import next_thought


class TagsParser:
    """``<name>argument</name>`` for every tool, any number per turn; often prompted from search and code agents.

    Tags that name no tool are text. If a tool's only parameter is a string, the argument is the unquoted text between
    the tags: without a line break or single space after the opening tag, and without white space before the closing
    tag, but with indentation. Calls of all other tools contain a JSON object of arguments.
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
            # An argument that parse would change, for example by stripping it, is written as JSON instead.
            plain = f"<{call.name}>{call.arguments[parameter]}</{call.name}>"
            if self.parse(plain).calls == (call,):
                return plain
        return f"<{call.name}>{json.dumps(dict(call.arguments), ensure_ascii=False)}</{call.name}>"

    def _read(self, text: str, opened: re.Match[str]) -> ParsedCall:
        name, closing = opened.group(1), f"</{opened.group(1)}>"
        parameter = self._text_parameter[name]
        # Try a JSON object of the tool's parameters first; the argument of a single string may also be plain text.
        try:
            arguments, end = read_object(text, opened.end())
            if not text.startswith(closing, end):
                raise ValueError(f"{closing} is missing")
            if parameter is None or ([*arguments] == [parameter] and isinstance(arguments[parameter], str)):
                return ParsedCall((ToolCall(name=name, arguments=arguments),), end + len(closing))
        except ValueError:
            # <name></name> calls a tool without arguments.
            if parameter is None and text[opened.end() :].lstrip().startswith(closing):
                return ParsedCall((ToolCall(name=name),), text.index(closing, opened.end()) + len(closing))
            if parameter is None:
                raise
        closing_mark = end_of_nested(text, opened.end(), self._open, re.compile(re.escape(closing)))
        if closing_mark is None:
            raise ValueError(f"{closing} is missing")
        argument = self._LAYOUT.sub("", text[opened.end() : closing_mark.start()]).rstrip()
        return ParsedCall((ToolCall(name=name, arguments={parameter: argument}),), closing_mark.end())

    def _example(self, name: str) -> str:
        parameter = self._text_parameter[name]
        return f"<{name}>{'{...}' if parameter is None else parameter}</{name}>"


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
        matches = [match.groups() for part in call_candidates(text) if (match := self._CALL.fullmatch(part))]
        calls = [(name, argument) for name, argument in matches if name in self._parameters]
        if not calls:
            return ParsedTurn(content=text.strip())
        # If an argument contains </think>, the call began inside a thought, so prefer another candidate.
        name, argument = next((call for call in calls if not _ends_thought(call[1])), calls[0])
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
    thought = next_thought(text)
    return thought is not None and not thought.opened
