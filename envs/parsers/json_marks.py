"""Calls whose arguments are JSON between marks: Mistral, DeepSeek, Kimi K2, Granite and Hermes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_json import read_call, read_object, read_value
from turntree.envs.parsers.call_scanner import ParsedCall, read_marked
from turntree.envs.parsers.turn import ParsedTurn
from turntree.envs.tools.tool import Tool


class Marks(NamedTuple):
    """The marks of one format, as regular expressions except ``written`` and ``openings``."""

    opening: str  #: begins a call, or a list of calls
    #: what stands between ``opening`` and the arguments, with a group ``name`` and optionally a group ``id``; empty if
    #: the format has only lists of calls
    name: str
    closing: str  #: must follow the arguments
    after: str  #: may follow ``closing``, to end a section of several calls
    written: str  #: template of a call, for ``str.format``
    lists: bool = False  #: a list of objects with ``name`` and ``arguments`` may follow ``opening``
    ends: str = r"</s>"  #: tokens that end a turn
    openings: tuple[str, ...] = ()  #: other texts with which a call may begin


_JSON = re.compile(r"\s*[\[{]")
_NAME = r"(?P<name>[^\s<>\[\]{}\"'`]+?)"
# \uff5c is DeepSeek's full-width bar, which looks like an ASCII bar.
_SECTION, _SECTION_END = "<\uff5ctool▁calls▁begin\uff5c>", "<\uff5ctool▁calls▁end\uff5c>"
_CALL, _SEP, _CALL_END = "<\uff5ctool▁call▁begin\uff5c>", "<\uff5ctool▁sep\uff5c>", "<\uff5ctool▁call▁end\uff5c>"
_DEEPSEEK = Marks(
    opening=rf"(?:{_SECTION}\s*)?{_CALL}",
    name=rf"\s*function\s*{_SEP}\s*{_NAME}\s*```(?:json)?",
    closing=rf"```\s*{_CALL_END}",
    after=rf"\s*{_SECTION_END}",
    written=f"{_SECTION}{_CALL}function{_SEP}{{name}}\n```json\n{{arguments}}\n```{_CALL_END}{_SECTION_END}",
    ends="<\uff5cend▁of▁sentence\uff5c>",
    openings=("<\uff5ctool",),
)
DEEPSEEK_V3 = _DEEPSEEK
DEEPSEEK_V31 = _DEEPSEEK._replace(
    name=rf"\s*{_NAME}\s*{_SEP}",
    closing=_CALL_END,
    written=f"{_SECTION}{_CALL}{{name}}{_SEP}{{arguments}}{_CALL_END}{_SECTION_END}",
)
KIMI_K2 = Marks(
    opening=r"(?:<\|tool_calls_section_begin\|>\s*)?<\|tool_call_begin\|>",
    name=rf"\s*(?P<id>(?:functions\.)?{_NAME}:\d+)\s*<\|tool_call_argument_begin\|>",
    closing=r"<\|tool_call_end\|>",
    after=r"\s*<\|tool_calls_section_end\|>",
    written="<|tool_calls_section_begin|><|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}"
    "<|tool_call_end|><|tool_calls_section_end|>",
    ends=r"<\|im_end\|>|\[EOS\]",
    openings=("<|tool_call",),
)
MISTRAL = Marks(
    opening=r"\[TOOL_CALLS\]",
    name=rf"\s*{_NAME}\s*(?:\[CALL_ID\](?P<id>\w+))?(?:\[ARGS\]|(?=\{{))",
    closing="",
    after=r"\s*\[/TOOL_CALLS\]",
    written='[TOOL_CALLS][{{"name": {quoted}, "arguments": {arguments}}}]',
    lists=True,
)
MISTRAL_V11 = MISTRAL._replace(written="[TOOL_CALLS]{name}[ARGS]{arguments}")
GRANITE = Marks(
    opening=r"<\|tool_call\|>|<tool_call>",
    name="",
    closing="",
    after=r"\s*</tool_call>",
    written='<|tool_call|>[{{"name": {quoted}, "arguments": {arguments}}}]',
    lists=True,
    ends=r"<\|end_of_text\|>",
    openings=("<tool_call",),
)


class JsonMarksParser:
    """Calls such as ``[TOOL_CALLS]name[ARGS]{...}``, or lists such as ``[TOOL_CALLS][{"name": ...}]``.

    The marks are special tokens of the models. A call's identifier is kept if the format has one, because templates
    repeat it with the tool's answer.

    Example:
        >>> JsonMarksParser(MISTRAL).parse("[TOOL_CALLS]now[ARGS]{}").calls[0].name
        'now'
    """

    special_tokens = True

    def __init__(self, marks: Marks, tools: Sequence[Tool] = ()) -> None:
        self._marks = marks
        self.openings = marks.openings
        self._opening = re.compile(marks.opening)
        self._name, self._closing = re.compile(marks.name), re.compile(marks.closing)
        self._after, self._ends = re.compile(marks.after), re.compile(rf"\s*(?:{marks.ends})\s*\Z")
        self._example = marks.written.format(name="NAME", quoted='"NAME"', arguments="{...}")

    def parse(self, text: str) -> ParsedTurn:
        turn = read_marked(text, self._opening, self._read, lambda opened: self._example)
        # Turns in these formats include special tokens, so the end-of-turn token is removed here.
        return replace(turn, content=self._ends.sub("", turn.content))

    def format_call(self, call: ToolCall) -> str:
        quoted, arguments = (json.dumps(value, ensure_ascii=False) for value in (call.name, dict(call.arguments)))
        return self._marks.written.format(name=call.name, quoted=quoted, arguments=arguments)

    def _read(self, text: str, opened: re.Match[str]) -> ParsedCall:
        # The name comes before the JSON (named), or inside the JSON of a list of calls.
        named = self._name.match(text, opened.end()) if self._marks.name else None
        if named is not None:
            arguments, end = read_object(text, named.end())
            call = ToolCall(name=named["name"], arguments=arguments, id=named.groupdict().get("id") or "")
            calls: tuple[ToolCall, ...] = (call,)
        elif self._marks.lists and _JSON.match(text, opened.end()):
            listed, end = read_value(text, opened.end())
            calls = tuple(map(_listed_call, listed if isinstance(listed, list) else [listed]))
            if not calls:
                raise ValueError("the list of calls is empty")
        else:
            raise ValueError(f"expected a call after {opened[0]}, got {text[opened.end() : opened.end() + 40]!r}")
        closing = self._closing.match(text, end)
        if closing is None:
            raise ValueError(f"the end of the call is missing before {text[end : end + 40]!r}")
        after = self._after.match(text, closing.end())
        return ParsedCall(calls, (after or closing).end())


def _listed_call(value: Any) -> ToolCall:
    call = read_call(value)
    return replace(call, id=value["id"]) if isinstance(value.get("id"), str) else call


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
