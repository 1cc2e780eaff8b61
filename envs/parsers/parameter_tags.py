"""Calls with one tag per parameter, whose values are text: Qwen3-Coder, GLM-4.5 and MiniMax M2."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_scanner import ParsedCall, end_of_nested, read_marked
from turntree.envs.parsers.turn import ParsedTurn
from turntree.envs.parsers.typed_text import read_typed
from turntree.envs.tools.tool import Tool

#: The name in a tag, with or without quotes and spaces: models do not always write these as their format does.
_NAME = r"""\s*["']?\s*([^<>"'\s]+)\s*["']?\s*"""


class Tags(NamedTuple):
    """The tags of one format."""

    outer: tuple[str, str]  #: texts before and after a call, or before and after several calls
    #: pattern that begins a call within ``outer``, with the tool's name as its group; text that ends it, may be empty
    function: tuple[str, str]
    #: pattern that begins a value, with the parameter's name as its group; text that ends the value
    parameter: tuple[str, str]
    #: templates of a call's beginning, of a parameter and of a call's end, for ``str.format``
    written: tuple[str, str, str]
    several: bool = False  #: ``outer`` may contain several calls
    on_lines: bool = False  #: a value is put on separate lines
    openings: tuple[str, ...] = ()  #: texts with which a call may begin if ``outer`` is missing


QWEN3_CODER = Tags(
    outer=("<tool_call>", "</tool_call>"),
    function=(rf"<function\s*={_NAME}>", "</function>"),
    parameter=(rf"<parameter\s*={_NAME}>", "</parameter>"),
    written=(
        "<tool_call>\n<function={name}>\n",
        "<parameter={name}>\n{value}\n</parameter>\n",
        "</function>\n</tool_call>",
    ),
    on_lines=True,
    openings=("<function",),
)
GLM45 = Tags(
    outer=("<tool_call>", "</tool_call>"),
    function=(r"([^<>\s{\[]+)\s*(?=<arg_key>|</tool_call>)", ""),
    parameter=(r"<arg_key>\s*([^<>\s]+)\s*</arg_key>\s*<arg_value>", "</arg_value>"),
    written=("<tool_call>{name}\n", "<arg_key>{name}</arg_key>\n<arg_value>{value}</arg_value>\n", "</tool_call>"),
)
MINIMAX_M2 = Tags(
    outer=("<minimax:tool_call>", "</minimax:tool_call>"),
    function=(rf"<invoke\s+name\s*={_NAME}>", "</invoke>"),
    parameter=(rf"<parameter\s+name\s*={_NAME}>", "</parameter>"),
    written=(
        '<minimax:tool_call>\n<invoke name="{name}">\n',
        '<parameter name="{name}">{value}</parameter>\n',
        "</invoke>\n</minimax:tool_call>",
    ),
    several=True,
    openings=("<invoke",),
)


class ParameterTagsParser:
    """Calls such as ``<tool_call><function=name><parameter=key>value</parameter></function></tool_call>``.

    A value is text. If the tool's schema expects another type, the value is read as JSON or as a Python literal; a
    value that is neither stays text, and the tool rejects it. The format's own tags inside a value are text if they
    come in pairs or cannot occur at that position. The outer tags may be missing.

    Example:
        >>> ParameterTagsParser(QWEN3_CODER).parse("<tool_call><function=now></function></tool_call>").calls[0].name
        'now'
    """

    def __init__(self, tags: Tags, tools: Sequence[Tool] = ()) -> None:
        self._schemas = {tool.name: tool.properties for tool in tools}
        self._definitions = {tool.name: tool.definitions for tool in tools}
        self._tags = tags
        self.openings = tags.openings
        outer, outer_end = map(re.escape, tags.outer)
        end = re.escape(tags.function[1])
        self._function = re.compile(rf"\s*{tags.function[0]}")
        self._opening = re.compile("|".join([outer, *([tags.function[0]] if end else ())]))
        # whole: with the outer tags; bare: without them. Each is a pair of opening and closing patterns.
        # If a format has no closing tag for a call, the call ends after a value.
        before = end or f"(?<={tags.parameter[1]})"
        whole = (tags.function[0] if tags.several else rf"{outer}\s*{tags.function[0]}", rf"{before}\s*{outer_end}")
        bare = (tags.function[0], rf"{end}(?:\s*{outer_end})?")
        self._whole = tuple(map(re.compile, bare if tags.several else whole))
        self._bare = tuple(map(re.compile, bare))
        self._parameter, self._parameter_end = re.compile(tags.parameter[0]), re.compile(rf"{tags.parameter[1]}\s*")
        begin, parameter, close = tags.written
        self._example = begin.format(name="NAME") + parameter.format(name="KEY", value="VALUE") + close

    def parse(self, text: str) -> ParsedTurn:
        return read_marked(text, self._opening, self._read, lambda opened: self._example)

    def format_call(self, call: ToolCall) -> str:
        begin, parameter, close = self._tags.written
        written = [begin.format(name=call.name)]
        for name, value in call.arguments.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            written.append(parameter.format(name=name, value=text))
        return "".join([*written, close])

    def _read(self, text: str, opened: re.Match[str]) -> ParsedCall | None:
        outer, outer_end = self._tags.outer
        bare = opened[0] != outer
        function = self._function.match(text, opened.start() if bare else opened.end())
        # In a format without a closing tag for a call, the outer closing tag right after the name means no arguments.
        if function is not None and not self._tags.function[1] and text.startswith(outer_end, function.end()):
            return ParsedCall((ToolCall(name=function[1]),), function.end() + len(outer_end))
        opening, closing = self._bare if bare else self._whole
        closing_mark = None if function is None else end_of_nested(text, function.end(), opening, closing)
        if function is None or closing_mark is None:
            if bare and function is not None and self._schemas and function[1] not in self._schemas:
                return None  # a tag that names no tool, for example in XML
            closed = bare or text.find(outer_end, opened.end()) >= 0
            shape = self._example.removeprefix(outer).strip().split("\n")[0]
            missing = self._tags.function[1] if bare else outer_end
            raise ValueError(
                f"{missing} is missing"
                if bare or not closed
                else f"expected {shape} ... {self._tags.function[1]} in {outer}"
            )
        return ParsedCall(
            (self._call(function[1], text[function.end() : closing_mark.start()].strip()),), closing_mark.end()
        )

    def _call(self, name: str, body: str) -> ToolCall:
        schemas = self._schemas.get(name, {})
        written: dict[str, str] = {}
        position = 0
        while position < len(body):
            opened = self._parameter.match(body, position)
            closing_mark = opened and end_of_nested(
                body, opened.end(), self._parameter, self._parameter_end, thoughts=False
            )
            if opened is None or closing_mark is None:
                got = body[position : position + 40]
                raise ValueError(f"expected {self._shown('KEY')} ... {self._tags.parameter[1]}, got {got!r}")
            if opened[1] in written:
                raise ValueError(f"{self._shown(opened[1])} occurs twice")
            value = body[opened.end() : closing_mark.start()]
            written[opened[1]] = value.removeprefix("\n").removesuffix("\n") if self._tags.on_lines else value
            position = closing_mark.end()
        # If a value's closing tag is missing, the value contains the next parameter's tag. This is an error only if the
        # tool has that parameter and the call lacks it; otherwise the value may contain such text on purpose.
        for value in written.values():
            names = self._parameter.findall(value)
            if len(names) > len(self._parameter_end.findall(value)):
                for missing in names:
                    if missing not in written and (missing in schemas or name not in self._schemas):
                        raise ValueError(f"{self._tags.parameter[1]} is missing before {self._shown(missing)}")
        definitions = self._definitions.get(name, {})
        arguments = {key: read_typed(value, schemas.get(key, {}), definitions) for key, value in written.items()}
        return ToolCall(name=name, arguments=arguments)

    def _shown(self, name: str) -> str:
        return self._tags.written[1].partition("{value}")[0].strip().replace("\n", "").format(name=name)
