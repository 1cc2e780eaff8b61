"""Strict reader of the JSON of one call: a ``ValueError`` names the problem."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple, NoReturn

from turntree.envs.data.json_files import is_deeper
from turntree.envs.message import ToolCall

ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")
"""Keys under which models put arguments."""
_BESIDE = {"name", "id", "type"}
"""Keys that a call may have beside its arguments'."""
_MOST_DEPTH = 100
"""Lists and objects around a value; records of episodes, which have some more around it, may have twice as many."""
_WHITE = re.compile(r"\s*")


class Read(NamedTuple):
    """A value that stands in a text."""

    value: Any
    end: int
    """Behind it, and behind white space."""


def read_call(call: Any, *, arguments_key: str = "arguments") -> ToolCall:
    """Read ``{"name": ..., "arguments": {...}}``.

    Raises:
        ValueError: If it is not such an object, or has another key: what is written there would be dropped.
    """
    if not isinstance(call, dict):
        raise ValueError("expected a JSON object")
    name, arguments = call.get("name"), call.get(arguments_key, {})
    if not isinstance(name, str) or not name:
        raise ValueError('"name" must be the name of a tool')
    if other := [key for key in call if key not in {*_BESIDE, arguments_key}]:
        raise ValueError(f'a call has no key {json.dumps(other[0])[:80]}; its arguments stand under "{arguments_key}"')
    if not isinstance(arguments, dict):
        raise ValueError(f'"{arguments_key}" must be a JSON object')
    return ToolCall(name=name, arguments=arguments)


def read_arguments(text: str) -> dict[str, Any]:
    """Read a text that is a JSON object of arguments as a whole.

    Raises:
        ValueError: If it is not one.
    """
    read = read_object(text)
    if read.end < len(text):
        raise ValueError(f"not JSON (Extra data at character {read.end})")
    value: dict[str, Any] = read.value
    return value


def read_object(text: str, start: int = 0) -> Read:
    """Read the JSON object of arguments that begins at a place.

    Raises:
        ValueError: If there is none.
    """
    read = read_value(text, start)
    if not isinstance(read.value, dict):
        raise ValueError("the arguments must be a JSON object")
    return read


def read_value(text: str, start: int = 0) -> Read:
    """Read the JSON value that begins at a place, rejecting the constants that Python accepts and JSON does not have.

    Raises:
        ValueError: If there is none; the message names the place.
    """
    start = _end_of_white(text, start)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at character {error.pos - start})") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if is_deeper(value, _MOST_DEPTH):
        raise ValueError("nested too deeply")
    return Read(value, _end_of_white(text, end))


def read_json(text: str) -> Any:
    """Read a text that is JSON as a whole.

    Raises:
        ValueError: If it is not.
    """
    read = read_value(text)
    if read.end < len(text):
        raise ValueError(f"not JSON (Extra data at character {read.end})")
    return read.value


def _end_of_white(text: str, start: int) -> int:
    return _WHITE.match(text, start).end()  # type: ignore[union-attr]


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse_constant(digits)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of its keys and values, of which none is dropped for a later one."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {json.dumps(twice)[:80]} stands twice in an object")
    return made


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_each_once)
