"""Convert values written as plain text or Python literals to the types of a tool's schema. Nothing is evaluated."""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from turntree.envs.data.json_files import is_deeper
from turntree.envs.parsers.call_json import read_json

_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_KINDS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (bool, ("boolean",)),
    (int, ("integer", "number")),
    (float, ("number",)),
    (str, ("string",)),
    (list, ("array",)),
    (dict, ("object",)),
)
_MAX_REFERENCES = 16  #: nested references that are followed; a schema may refer to itself


def read_typed(text: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    """Convert a text to the type that a schema expects.

    Args:
        schema: JSON schema of the value; a schema without a type expects text.

    Returns:
        The parsed JSON value if the schema allows its type; else the text itself if the schema allows text; else the
        JSON value, which the tool then rejects. A Python list or dictionary is read if the schema allows no text.

    Example:
        >>> read_typed("5", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, {}), read_typed("5", {}, {})
        (5, '5')
    """
    leaves = [*_leaves(schema, definitions, _MAX_REFERENCES)]
    choices = [choice for leaf in leaves for choice in _choices(leaf)]
    kinds = _kinds_of_leaves(leaves)
    stripped = text.strip()
    for candidate in (text, stripped):
        if candidate in choices:
            return candidate
    # Models also write Python's True, False and None.
    try:
        value = _PYTHON_WORDS[stripped] if stripped in _PYTHON_WORDS else read_json(stripped)
    except ValueError:
        # Not JSON: keep the text, unless the schema wants only lists or objects, which may be written as in Python.
        return text if "string" in kinds or kinds.isdisjoint(("array", "object")) else _read_literal(text)
    # A JSON string in quotes stays as the model wrote it, including the quotes.
    if isinstance(value, str) or not kinds.isdisjoint({*_kinds(value)} - {"string"}):
        return text if isinstance(value, str) else value
    return text if "string" in kinds else value


def _read_literal(text: str) -> Any:
    try:
        return literal_value(parse_expression(text))
    except ValueError:
        return text


def _leaves(schema: Any, definitions: Mapping[str, Any], deepest: int) -> Iterator[Mapping[str, Any]]:
    # Resolves references and alternatives (anyOf, ...) and yields the remaining simple schemas.
    if not isinstance(schema, Mapping) or deepest == 0:
        return
    if schema.get("nullable"):
        yield {"type": "null"}
    if isinstance(name := schema.get("$ref"), str):
        yield from _leaves(definitions.get(name.rpartition("/")[2]), definitions, deepest - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        for member in schema.get(key) or ():
            yield from _leaves(member, definitions, deepest - 1)
    if not schema.keys().isdisjoint(("type", "enum", "const")):
        yield schema


def allows_text(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    return "string" in _kinds_of_leaves([*_leaves(schema, definitions, _MAX_REFERENCES)])


def _kinds_of_leaves(leaves: Iterable[Mapping[str, Any]]) -> set[str]:
    return {kind for leaf in leaves for kind in _kinds_of_leaf(leaf)} or {"string"}


def _kinds_of_leaf(leaf: Mapping[str, Any]) -> Iterator[str]:
    if "type" in leaf:
        yield from [leaf["type"]] if isinstance(leaf["type"], str) else leaf["type"]
        return
    for choice in _choices(leaf):
        yield from _kinds(choice)


def _choices(leaf: Mapping[str, Any]) -> list[Any]:
    return [leaf["const"]] if "const" in leaf else list(leaf.get("enum") or ())


def _kinds(value: Any) -> tuple[str, ...]:
    return next((kinds for kind, kinds in _KINDS if isinstance(value, kind)), ("null",))


MAX_LITERAL = 50_000  #: maximum characters of a literal; Python's parser needs about 100 bytes of memory per character
_MAX_DEPTH = 100
_JSON_WORDS = {"true": True, "false": False, "null": None}


def parse_expression(text: str) -> ast.expr:
    if len(text) > MAX_LITERAL:
        raise ValueError(f"more than {MAX_LITERAL} characters of Python; write JSON")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\d" would print a warning about the policy's text to the user
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
    if is_deeper(value, _MAX_DEPTH):
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
        raise ValueError(f"{ast.unparse(node)[:40]!r} is not a JSON value")
    return value
