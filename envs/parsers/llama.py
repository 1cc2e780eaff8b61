"""Calls as Llama models write them: the whole turn is JSON (3.1 and later) or a Python list (3.2 and 4)."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from keyword import iskeyword
from typing import Any

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_json import ARGUMENT_KEYS, read_call, read_value
from turntree.envs.parsers.call_scanner import call_candidates
from turntree.envs.parsers.turn import ParsedTurn, unreadable
from turntree.envs.parsers.typed_text import allows_text, literal_value, parse_expression, read_typed
from turntree.envs.tools.tool import Tool


class Llama3JsonParser:
    """Llama 3.1 and later: the turn is ``{"name": ..., "parameters": {...}}``, apart from thoughts.

    Several calls are separated by ``;``, and ``<|python_tag|>`` may precede them. A turn is not a call if it does not
    begin like such an object, or if the object has no parameters and its name is not the name of a tool.

    Example:
        >>> Llama3JsonParser().parse('{"name": "now", "parameters": {}}').calls[0].name
        'now'
    """

    _TAG = "<|python_tag|>"
    _EXAMPLE = '{"name": "...", "parameters": {...}}'

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._names = [tool.name for tool in tools]

    def parse(self, text: str) -> ParsedTurn:
        for candidate in call_candidates(text):
            try:
                calls, problem = self._read(candidate), ""
            except ValueError as error:
                calls, problem = [], str(error)
            if calls:
                return ParsedTurn(content="", calls=tuple(calls))
        # The last candidate is the turn without its thoughts. Report its problem, not a problem inside a thought.
        return unreadable(text, problem, self._EXAMPLE) if problem else ParsedTurn(content=text.strip())

    def format_call(self, call: ToolCall) -> str:
        return json.dumps({"name": call.name, "parameters": dict(call.arguments)}, ensure_ascii=False)

    def _read(self, candidate: str) -> list[ToolCall]:
        rest = candidate.strip().removeprefix(self._TAG).strip()
        tagged = rest != candidate.strip()
        if not tagged and not (rest.startswith("{") and '"name"' in rest):
            return []
        calls: list[ToolCall] = []
        end = -1
        while end < len(rest):
            value, end = read_value(rest, end + 1)
            # Without the tag, JSON may be an ordinary answer. Only an object that looks like a call makes it one.
            if not (calls or tagged or self._is_call(value)):
                return []
            calls.append(read_call(value, arguments_key="parameters"))
            if end < len(rest) and rest[end] != ";":
                raise ValueError(f"expected ';' or the end after a call, got {rest[end : end + 40]!r}")
        return calls

    def _is_call(self, value: dict[str, Any]) -> bool:
        return "name" in value and (value["name"] in self._names or any(key in value for key in ARGUMENT_KEYS))


class PythonicParser:
    """Llama 3.2 and Llama 4: ``[name(key="value"), other(n=1)]``, apart from thoughts.

    ``<|python_start|>`` and ``<|python_end|>`` may surround the list. Arguments are keyword arguments with literal
    values; nothing is evaluated. If the tool's schema allows no text, a quoted value is read as JSON or as a literal. A
    turn that begins with ``[``, a tool's name and ``(`` but cannot be read is an error.

    Example:
        >>> PythonicParser().parse("[now()]").calls[0].name
        'now'
    """

    _AROUND = re.compile(r"\A\s*(?:<\|python_(?:tag|start)\|>)?\s*(.*?)\s*(?:<\|python_end\|>)?\s*\Z", re.DOTALL)
    _BEGIN = re.compile(r"\[\s*([^\W\d][\w.]*)\s*\(")
    _EXAMPLE = '[NAME(KEY="VALUE")]'

    def __init__(self, tools: Sequence[Tool] = ()) -> None:
        self._tools = {tool.name: tool for tool in tools}

    def parse(self, text: str) -> ParsedTurn:
        problem = ""
        for candidate in call_candidates(text):
            around = self._AROUND.match(candidate)
            begin = self._BEGIN.match(around[1]) if around else None
            if around is None or begin is None:
                continue
            try:
                return ParsedTurn(content="", calls=self._read(around[1]))
            except ValueError as error:
                if begin[1] in self._tools:
                    problem = problem or str(error)
        return unreadable(text, problem, self._EXAMPLE) if problem else ParsedTurn(content=text.strip())

    def format_call(self, call: ToolCall) -> str:
        plain = {name: value for name, value in call.arguments.items() if name.isidentifier() and not iskeyword(name)}
        written = [f"{name}={value!r}" for name, value in plain.items()]
        # A name that is not a valid Python keyword argument is written as **{"name": value}.
        if unusual := {name: value for name, value in call.arguments.items() if name not in plain}:
            written.append(f"**{unusual!r}")
        return f"[{call.name}({', '.join(written)})]"

    def _read(self, text: str) -> tuple[ToolCall, ...]:
        written = parse_expression(text)
        if not isinstance(written, ast.List):
            raise ValueError("expected a list of calls")
        return tuple(map(self._typed, map(_call, written.elts)))

    def _typed(self, call: ToolCall) -> ToolCall:
        # Llama 4's template quotes all values, so quoted values are converted to the schema's types.
        if (tool := self._tools.get(call.name)) is None:
            return call
        arguments = {
            name: value
            if not isinstance(value, str) or allows_text(schema := tool.properties.get(name, {}), tool.definitions)
            else read_typed(value, schema, tool.definitions)
            for name, value in call.arguments.items()
        }
        return ToolCall(name=call.name, arguments=arguments)


def _call(node: ast.expr) -> ToolCall:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        raise ValueError(f"expected a call, got {ast.unparse(node)[:40]!r}")
    name = ast.unparse(node.func)
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        value = literal_value(keyword.value)
        given = {keyword.arg: value} if keyword.arg is not None else value  # without a name: **{...}
        if not isinstance(given, dict) or not given.keys().isdisjoint(arguments):
            raise ValueError(f"{name} has an argument twice, or one without a name")
        arguments.update(given)
    if node.args:
        raise ValueError(f"the arguments of {name} need names, as in {name}(KEY=VALUE)")
    return ToolCall(name=name, arguments=arguments)
