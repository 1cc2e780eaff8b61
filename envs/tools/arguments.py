"""Checks of a model's tool arguments against the tool's schema.

Every error is a ``ToolError`` that the model can act on: what was expected,
what came. Values come from JSON, so only JSON types are distinguished.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turntree.envs.errors import ToolError

_SHOWN = 80
_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict,),
    "null": (type(None),),
}


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Check the arguments of one call.

    Args:
        schema: OpenAI schema of the tool, as ``function_schema`` makes it.

    Raises:
        ToolError: If an argument is unknown, missing or of the wrong type.
    """
    name = schema["function"]["name"]
    parameters = schema["function"]["parameters"]
    properties = parameters["properties"]
    expected = ", ".join(properties) or "no arguments"
    for argument in arguments:
        if argument not in properties:
            raise ToolError(f"{name} has no argument {_shown(argument)}; it takes: {expected}")
    for argument in parameters.get("required", ()):
        if argument not in arguments:
            raise ToolError(f"{name} needs the argument {argument!r}; it takes: {expected}")
    for argument, value in arguments.items():
        _check(value, properties[argument], where=f"argument {argument!r} of {name}")


def _check(value: Any, schema: Mapping[str, Any], *, where: str) -> None:
    if value is None and schema.get("nullable"):
        return
    if "anyOf" in schema:
        if not any(_fits(value, member) for member in schema["anyOf"]):
            raise ToolError(f"{where} has the wrong type, got {_shown(value)}")
        return
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is_kind(value, kind) for kind in kinds):
        raise ToolError(f"{where} must be of type {' or '.join(kinds)}, got {_shown(value)}")
    if "enum" in schema and value not in schema["enum"]:
        choices = ", ".join(_shown(choice) for choice in schema["enum"])
        raise ToolError(f"{where} must be one of {choices}, got {_shown(value)}")
    if isinstance(value, list | tuple):
        _check_items(list(value), schema, where=where)
    elif isinstance(value, dict) and "additionalProperties" in schema:
        for key, item in value.items():
            _check(item, schema["additionalProperties"], where=f"{key!r} in {where}")


def _check_items(items: list[Any], schema: Mapping[str, Any], *, where: str) -> None:
    prefix = schema.get("prefixItems")
    if prefix is not None and len(items) != len(prefix):
        raise ToolError(f"{where} must have {len(prefix)} items, got {len(items)}")
    for i, item in enumerate(items):
        _check(item, prefix[i] if prefix is not None else schema.get("items", {}), where=f"item {i} of {where}")


def _fits(value: Any, schema: Mapping[str, Any]) -> bool:
    try:
        _check(value, schema, where="")
    except ToolError:
        return False
    return True


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # Python's bool is an int, JSON's is not
        return kind == "boolean"
    return isinstance(value, _PYTHON_TYPES[kind])


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
