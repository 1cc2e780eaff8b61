"""Strict reader of the JSON of one call: a ``ValueError`` names the problem."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from turntree.envs.message import ToolCall


def read_call(text: str, *, arguments_key: str = "arguments") -> ToolCall:
    """Read ``{"name": ..., "arguments": {...}}``.

    Args:
        text: JSON.
        arguments_key: Key of the arguments in this format.

    Raises:
        ValueError: If it is not such an object.
    """
    call = read_json(text)
    if not isinstance(call, dict):
        raise ValueError("expected a JSON object")
    name, arguments = call.get("name"), call.get(arguments_key, {})
    if not isinstance(name, str) or not name:
        raise ValueError('"name" must be the name of a tool')
    if not isinstance(arguments, dict):
        raise ValueError(f'"{arguments_key}" must be a JSON object')
    return ToolCall(name=name, arguments=arguments)


def read_arguments(text: str) -> dict[str, Any]:
    """Read a JSON object of arguments.

    Raises:
        ValueError: If it is not one.
    """
    arguments = read_json(text)
    if not isinstance(arguments, dict):
        raise ValueError("the arguments must be a JSON object")
    return arguments


def read_json(text: str) -> Any:
    """Read JSON, rejecting the constants that Python's parser accepts and JSON does not have.

    Raises:
        ValueError: If it is not JSON; the message names the place.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at character {error.pos})") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse_constant(digits)
