"""Conversion of type hints and a Google docstring to the OpenAI schema of a function.

The result equals ``transformers.utils.get_json_schema`` for the types that both support, so chat templates receive
the same schemas; transformers itself is not needed. One exception: a bare ``list`` is an array here, but an object in
transformers. Not supported: custom classes, ``*args`` and ``**kwargs``.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from turntree.envs.errors import ToolDefinitionError
from turntree.envs.task import Context

_BASIC = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_SECTION = re.compile(r"(Args|Arguments|Returns|Raises):\s*")
_ARGUMENT = re.compile(r"(\w+)(?:\s*\([^)]*\))?:\s*(.*)")
_CHOICES = re.compile(r"\s*\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


class Docstring(NamedTuple):
    description: str
    arguments: dict[str, str]
    returns: str


def function_schema(function: Callable[..., Any], *, name: str | None = None) -> dict[str, Any]:
    """Describe a function as an OpenAI tool.

    Args:
        function: A function with type hints and a Google docstring. An unannotated first parameter ``self`` and a
            parameter annotated ``Context`` are left out.
        name: Name shown to the model; by default the function's own.

    Returns:
        ``{"type": "function", "function": {"name", "description", "parameters", "return"}}``.

    Raises:
        ToolDefinitionError: If a hint, the docstring or the description of an argument is missing.
    """
    try:
        return _schema(function, name or function.__name__)
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"{_location(function)}{error}") from None


def _location(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f"{code.co_filename}:{code.co_firstlineno}: "


def _schema(function: Callable[..., Any], name: str) -> dict[str, Any]:
    doc = parse_docstring(inspect.getdoc(function) or "")
    if not doc.description:
        raise ToolDefinitionError(f"tool {name!r} needs a docstring that tells the model what the tool does")
    hints = get_type_hints(function)
    properties: dict[str, Any] = {}
    required = []
    for parameter in tool_parameters(function):
        if hints.get(parameter.name) is Context:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolDefinitionError(
                f"tool {name!r} can only take named parameters, got {str(parameter)!r}; name each argument"
            )
        if parameter.name not in hints:
            raise ToolDefinitionError(f"parameter {parameter.name!r} of tool {name!r} needs a type hint")
        if parameter.name not in doc.arguments:
            raise ToolDefinitionError(
                f"parameter {parameter.name!r} of tool {name!r} needs a line under 'Args:' in the docstring"
            )
        where = f"parameter {parameter.name!r} of tool {name!r}"
        schema = type_schema(hints[parameter.name], where=where)
        # As in transformers, "(choices: [...])" at the end of a description becomes an enum.
        properties[parameter.name] = schema | _described(doc.arguments[parameter.name], where=where)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        parameters["required"] = required
    described = {"name": name, "description": doc.description, "parameters": parameters}
    if "return" in hints:
        returns = type_schema(hints["return"], where=f"the return value of tool {name!r}")
        described["return"] = returns | ({"description": doc.returns} if doc.returns else {})
    return {"type": "function", "function": described}


def takes_self(function: Callable[..., Any]) -> bool:
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return first is not None and first.name == "self" and first.annotation is first.empty


def context_parameter(function: Callable[..., Any]) -> str | None:
    names = [name for name, hint in get_type_hints(function).items() if hint is Context and name != "return"]
    return names[0] if names else None


def tool_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that the model fills in."""
    parameters = list(inspect.signature(function).parameters.values())
    return parameters[1:] if takes_self(function) else parameters


def type_schema(hint: Any, *, where: str) -> dict[str, Any]:
    """Return the JSON schema of a type hint.

    Raises:
        ToolDefinitionError: If no JSON type corresponds to the hint; the message begins with ``where``.
    """
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return {}
    if hint in _BASIC:
        return {"type": _BASIC[hint]}
    if hint in (list, tuple) or (origin is list and not args):
        return {"type": "array"}
    if hint is dict:
        return {"type": "object"}
    if origin is Literal and all(type(value) in _BASIC for value in args):
        kinds = list(dict.fromkeys(_BASIC[type(value)] for value in args))
        return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": list(args)}
    if origin is list:
        return {"type": "array", "items": type_schema(args[0], where=where)}
    if origin is tuple and ... not in args:
        return {"type": "array", "prefixItems": [type_schema(arg, where=where) for arg in args]}
    if origin is dict:
        return {"type": "object", "additionalProperties": type_schema(args[1], where=where)}
    if origin in (Union, types.UnionType):
        return _union_schema(args, where=where)
    raise ToolDefinitionError(
        f"{where} has the type hint {hint!r}, which JSON cannot express; use int, float, str, bool, "
        "list[T], tuple[T, ...] with fixed length, dict[str, T], Literal[...] or a union of them"
    )


def _union_schema(args: tuple[Any, ...], *, where: str) -> dict[str, Any]:
    members = [type_schema(arg, where=where) for arg in args if arg is not type(None)]
    if len(members) == 1:
        schema = dict(members[0])
    elif all(isinstance(member.get("type"), str) for member in members):
        schema = {"type": sorted(member["type"] for member in members)}
    else:
        schema = {"anyOf": members}
    if type(None) in args:
        schema["nullable"] = True
    return schema


def _described(text: str, *, where: str) -> dict[str, Any]:
    choices = _CHOICES.search(text)
    if choices is None:
        return {"description": text}
    try:
        values = json.loads(choices.group(1))
    except ValueError as error:
        raise ToolDefinitionError(
            f'{where} lists its choices as {choices.group(1)!r}; write JSON, like (choices: ["a", "b"])'
        ) from error
    values = [value.strip() if isinstance(value, str) else value for value in values]
    return {"enum": values, "description": text[: choices.start()]}


def parse_docstring(doc: str) -> Docstring:
    """Split a dedented Google docstring into description, argument descriptions and return description."""
    sections: dict[str, list[str]] = {"": []}
    current = ""
    for line in doc.splitlines():
        header = _SECTION.fullmatch(line)
        if header:
            current = header.group(1).replace("Arguments", "Args")
            sections.setdefault(current, [])
        else:
            sections[current].append(line)
    return Docstring(
        description="\n".join(sections[""]).strip(),
        arguments=_argument_lines([line for line in sections.get("Args", []) if line.strip()]),
        returns=" ".join(" ".join(sections.get("Returns", [])).split()),
    )


def _argument_lines(lines: list[str]) -> dict[str, str]:
    arguments: dict[str, str] = {}
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    name = ""
    for line in lines:
        opening = _ARGUMENT.fullmatch(line.strip()) if line[indent : indent + 1].strip() else None
        if opening:
            name, text = opening.groups()
            arguments[name] = text.strip()
        elif name:
            arguments[name] = f"{arguments[name]} {line.strip()}".strip()
    return arguments
