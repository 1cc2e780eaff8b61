"""Checks of the model's tool arguments against the tool's schema. All values come from JSON and have JSON's types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from turntree.envs.data.json_files import half_in
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


def check_arguments(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Check the arguments of one call.

    Args:
        schema: OpenAI schema of the tool, as ``function_schema`` returns it.

    Returns:
        The arguments. A float with an integral value becomes an int if the schema expects an integer.

    Raises:
        ToolError: If an argument is unknown, missing, of the wrong type, or not valid Unicode.
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
        if problem := half_in(value):
            raise ToolError(f"argument {argument!r} of {name}: {problem}")
    return {
        argument: _fitted(value, properties[argument], where=f"argument {argument!r} of {name}")
        for argument, value in arguments.items()
    }


def _fitted(value: Any, schema: Mapping[str, Any], *, where: str) -> Any:
    if value is None and schema.get("nullable"):
        return value
    if "anyOf" in schema:
        matching = [fitted for member in schema["anyOf"] for fitted in _fits(value, member)]
        if not matching:
            raise ToolError(f"{where} has the wrong type, got {_shown(value)}")
        # In a union, prefer the alternative that keeps the value's type: 2.0 stays a float if a float is allowed.
        return next((choice for choice in matching if type(choice) is type(value)), matching[0])
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is_kind(value, kind) for kind in kinds):
        # JSON does not distinguish 2 and 2.0, and models write either for an integer.
        if not ("integer" in kinds and isinstance(value, float) and value.is_integer()):
            raise ToolError(f"{where} must be of type {' or '.join(kinds)}, got {_shown(value)}")
        value = int(value)
    if "enum" in schema and value not in schema["enum"]:
        choices = ", ".join(_shown(choice) for choice in schema["enum"])
        raise ToolError(f"{where} must be one of {choices}, got {_shown(value)}")
    if isinstance(value, list | tuple):
        return _fitted_items(list(value), schema, where=where)
    inner = schema.get("additionalProperties")
    if isinstance(value, dict) and isinstance(inner, Mapping):
        return {key: _fitted(item, inner, where=f"{key!r} in {where}") for key, item in value.items()}
    return value


def _fitted_items(items: list[Any], schema: Mapping[str, Any], *, where: str) -> list[Any]:
    prefix = schema.get("prefixItems")
    if prefix is not None and len(items) != len(prefix):
        raise ToolError(f"{where} must have {len(prefix)} items, got {len(items)}")
    schemas = [schema.get("items", {})] * len(items) if prefix is None else prefix
    return [_fitted(item, schemas[i], where=f"item {i} of {where}") for i, item in enumerate(items)]


def _fits(value: Any, schema: Mapping[str, Any]) -> list[Any]:
    try:
        return [_fitted(value, schema, where="")]
    except ToolError:
        return []


def _is_kind(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # a bool is an int in Python, but not in JSON
        return kind == "boolean"
    return isinstance(value, _PYTHON_TYPES[kind])


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
