"""Reader of Python literals, which models write instead of JSON. Nothing is evaluated."""

from __future__ import annotations

import ast
import math
import warnings
from typing import Any

from turntree.envs.data.json_files import is_deeper

LONGEST = 50_000  #: characters; Python's parser takes a hundred times as many bytes
_MOST_DEPTH = 100
_JSON_WORDS = {"true": True, "false": False, "null": None}


def parse_expression(text: str) -> ast.expr:
    if len(text) > LONGEST:
        raise ValueError(f"more than {LONGEST} characters of Python; write JSON")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a backslash in a text is none of the operator's business
            return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"not Python ({error.msg})") from error
    except (MemoryError, RecursionError) as error:
        raise ValueError("nested too deeply") from error


def literal_value(node: ast.expr) -> Any:
    """Return the JSON value of a literal; tuples become lists, and ``true``, ``false`` and ``null`` count."""
    try:
        value = _value(node)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if is_deeper(value, _MOST_DEPTH):
        raise ValueError("nested too deeply")
    return value


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        keys = [None if key is None else _value(key) for key in node.keys]
        if not all(isinstance(key, str) for key in keys) or len({*keys}) < len(keys):
            raise ValueError("the keys of an object must be different strings")
        return dict(zip(keys, map(_value, node.values), strict=True))
    if isinstance(node, ast.Name) and node.id in _JSON_WORDS:
        return _JSON_WORDS[node.id]
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError) as error:
        raise ValueError(f"{ast.unparse(node)[:40]!r} is not a literal") from error
    if not isinstance(value, str | bool | int | float | None) or (
        isinstance(value, float) and not math.isfinite(value)
    ):
        raise ValueError(f"{ast.unparse(node)[:40]!r} is no value of JSON")
    return value
