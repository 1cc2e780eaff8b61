"""Tool calls written in the policy's text, and back.

A parser never raises on what a model wrote: a call that cannot be read becomes
``ParsedTurn.error``, which is said to the model. Not covered: calls that an
engine has parsed already.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

from turntree.envs.errors import UnknownParser
from turntree.envs.message import ToolCall
from turntree.envs.tool import Tool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTurn:
    """What one turn of the policy means."""

    content: str
    """The text around the calls, stripped."""
    calls: tuple[ToolCall, ...] = ()
    """Tool calls in the order in which they stand; empty where ``error`` is not."""
    error: str = ""
    """What is wrong with a call that cannot be read, said to the model; empty if nothing is."""


class ToolParser(Protocol):
    """One way to write tool calls."""

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn of the policy."""
        ...

    def format_call(self, call: ToolCall) -> str:
        """Write a call the way that ``parse`` reads it."""
        ...


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
        before, *blocks = text.split(self._OPEN)
        content, calls = [before], []
        for block in blocks:
            body, closed, after = block.partition(self._CLOSE)
            if not closed:
                return self._unreadable(text, f"{self._CLOSE} is missing")
            try:
                calls.append(_read_call(body))
            except ValueError as error:
                return self._unreadable(text, str(error))
            content.append(after)
        return ParsedTurn(content="".join(content).strip(), calls=tuple(calls))

    def _unreadable(self, text: str, reason: str) -> ParsedTurn:
        error = f"malformed tool call: {reason}. Write it as {self._EXAMPLE}"
        return ParsedTurn(content=text.strip(), error=error)

    def format_call(self, call: ToolCall) -> str:
        """Write a call the way that ``parse`` reads it."""
        body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
        return f"{self._OPEN}\n{body}\n{self._CLOSE}"


class CompactParser:
    """The whole turn is ``name(argument)``: one call of a tool with exactly one string parameter.

    Everything between the first ``(`` and the last ``)`` is the argument, unquoted.
    A turn of any other form, or with a name that is not declared, is not a call.
    """

    _CALL = re.compile(r"\s*(\w+)\((.*)\)\s*", re.DOTALL)

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        """Make the parser for calls of ``tools``; those with other parameters cannot be called."""
        self._parameters = {
            tool.name: parameter
            for tool in tools
            for parameter, schema in tool.properties.items()
            if len(tool.properties) == 1 and schema.get("type") == "string"
        }

    def parse(self, text: str) -> ParsedTurn:
        """Read one turn of the policy."""
        match = self._CALL.fullmatch(text)
        if match is None or match.group(1) not in self._parameters:
            return ParsedTurn(content=text.strip())
        name, argument = match.groups()
        return ParsedTurn(content="", calls=(ToolCall(name=name, arguments={self._parameters[name]: argument}),))

    def format_call(self, call: ToolCall) -> str:
        """Write a call the way that ``parse`` reads it.

        Raises:
            ValueError: If the call does not have exactly one argument, a string.
        """
        values = list(call.arguments.values())
        if len(values) != 1 or not isinstance(values[0], str):
            raise ValueError(
                f"the compact format writes calls with one string argument, got {dict(call.arguments)!r}; "
                "use the hermes format"
            )
        return f"{call.name}({values[0]})"


_PARSERS: dict[str, Callable[[Sequence[Tool]], ToolParser]] = {
    "hermes": HermesParser,
    "compact": CompactParser,
}


def get_parser(name: str, tools: Sequence[Tool] = ()) -> ToolParser:
    """The parser of a tool-call format.

    Args:
        name: ``hermes`` or ``compact``.
        tools: Tools that may be called.

    Raises:
        UnknownParser: If there is no such format; the message names the nearest.
    """
    if name in _PARSERS:
        return _PARSERS[name](tools)
    nearest = difflib.get_close_matches(str(name), _PARSERS, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else "choose one of them"
    raise UnknownParser(f"tool_format must be one of {', '.join(_PARSERS)}, got {name!r}; {hint}")


def _read_call(block: str) -> ToolCall:
    """Read the JSON of one call; a ``ValueError`` says what is wrong with it."""
    try:
        call = json.loads(block, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at character {error.pos})") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(call, dict):
        raise ValueError("expected a JSON object")
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str) or not name:
        raise ValueError('"name" must be the name of a tool')
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" must be a JSON object')
    return ToolCall(name=name, arguments=arguments)


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse_constant(digits)
