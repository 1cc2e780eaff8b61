from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from keyword import iskeyword
from typing import Any

from turntree.envs.message import ToolCall
from turntree.envs.parsers.call_scanner import call_candidates
from turntree.envs.parsers.literals import literal_value, parse_expression
from turntree.envs.parsers.turn import ParsedTurn, unreadable
from turntree.envs.parsers.typed_text import allows_text, read_typed
from turntree.envs.tools.tool import Tool


class PythonicParser:
    """Llama 3.2 and Llama 4: ``[name(key="value"), other(n=1)]``, apart from thoughts.

    ``<|python_start|>`` and ``<|python_end|>`` may surround the list. Arguments are literals with names; nothing is
    evaluated. A quoted text is read as JSON or as a literal if the tool's schema allows no text. A turn that begins
    with ``[``, a tool's name and ``(`` but cannot be read is an error.

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
        wrong = ""
        for words in call_candidates(text):
            around = self._AROUND.match(words)
            begin = self._BEGIN.match(around[1]) if around else None
            if around is None or begin is None:
                continue
            try:
                return ParsedTurn(content="", calls=self._read(around[1]))
            except ValueError as error:
                if begin[1] in self._tools:
                    wrong = wrong or str(error)
        return unreadable(text, wrong, self._EXAMPLE) if wrong else ParsedTurn(content=text.strip())

    def format_call(self, call: ToolCall) -> str:
        plain = {name: value for name, value in call.arguments.items() if name.isidentifier() and not iskeyword(name)}
        written = [f"{name}={value!r}" for name, value in plain.items()]
        if other := {name: value for name, value in call.arguments.items() if name not in plain}:
            written.append(f"**{other!r}")
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
    for one in node.keywords:
        value = literal_value(one.value)
        given = {one.arg: value} if one.arg is not None else value
        if not isinstance(given, dict) or not given.keys().isdisjoint(arguments):
            raise ValueError(f"{name} has an argument twice, or one without a name")
        arguments.update(given)
    if node.args:
        raise ValueError(f"the arguments of {name} need names, as in {name}(KEY=VALUE)")
    return ToolCall(name=name, arguments=arguments)
