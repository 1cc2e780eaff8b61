"""Strict reader of the JSON of one call. All functions raise a ``ValueError`` that names the problem."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple, NoReturn

from turntree.envs.data.json_files import is_deeper
from turntree.envs.message import ToolCall

ARGUMENT_KEYS = ("arguments", "parameters", "args", "input")  #: keys under which models put a call's arguments
_OTHER_KEYS = {"name", "id", "type"}  #: keys that a call may have besides its arguments
#: Maximum nesting of lists and objects. Records of episodes allow twice this depth, because they wrap the values.
_MAX_DEPTH = 100
_WHITE = re.compile(r"\s*")


class Read(NamedTuple):
    value: Any
    end: int  #: index after the value and the white space that follows it


def read_call(call: Any, *, arguments_key: str = "arguments") -> ToolCall:
    """Read ``{"name": ..., "arguments": {...}}``; unknown keys are refused, because their values would be lost."""
    if not isinstance(call, dict):
        raise ValueError("expected a JSON object")
    name, arguments = call.get("name"), call.get(arguments_key, {})
    if not isinstance(name, str) or not name:
        raise ValueError('"name" must be the name of a tool')
    if unknown := [key for key in call if key not in {*_OTHER_KEYS, arguments_key}]:
        raise ValueError(f'a call has no key {json.dumps(unknown[0])[:80]}; put arguments under "{arguments_key}"')
    if not isinstance(arguments, dict):
        raise ValueError(f'"{arguments_key}" must be a JSON object')
    return ToolCall(name=name, arguments=arguments)


def read_arguments(text: str) -> dict[str, Any]:
    arguments, end = read_object(text)
    if end < len(text):
        raise ValueError(f"not JSON (Extra data at character {end})")
    return dict(arguments)


def read_object(text: str, start: int = 0) -> Read:
    read = read_value(text, start)
    if not isinstance(read.value, dict):
        raise ValueError("the arguments must be a JSON object")
    return read


def read_value(text: str, start: int = 0) -> Read:
    """Read the JSON value at ``start``; refuse constants that Python accepts and JSON lacks (``NaN``)."""
    start = _end_of_white(text, start)
    try:
        value, end = _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at character {error.pos - start})") from error
    # Python's parser recurses once per level, so deep input fails before is_deeper can measure the depth.
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if is_deeper(value, _MAX_DEPTH):
        raise ValueError("nested too deeply")
    return Read(value, _end_of_white(text, end))


def read_json(text: str) -> Any:
    read = read_value(text)
    if read.end < len(text):
        raise ValueError(f"not JSON (Extra data at character {read.end})")
    return read.value


def _end_of_white(text: str, start: int) -> int:
    return _WHITE.match(text, start).end()  # type: ignore[union-attr]


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


# 1e999 is valid JSON, but Python reads it as infinity, which JSON cannot express.
def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse_constant(digits)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Refuses duplicate keys, of which Python's parser would keep only the last.
    unique = dict(pairs)
    if len(unique) < len(pairs):
        names = [name for name, _ in pairs]
        duplicate = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {json.dumps(duplicate)[:80]} occurs twice in an object")
    return unique


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique_keys)
