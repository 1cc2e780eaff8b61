from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from turntree.envs.parsers.call_json import read_json
from turntree.envs.parsers.literals import literal_value, parse_expression

_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_KINDS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (bool, ("boolean",)),
    (int, ("integer", "number")),
    (float, ("number",)),
    (str, ("string",)),
    (list, ("array",)),
    (dict, ("object",)),
)
_DEEPEST = 16  #: nested references that are followed; a schema may refer to itself


def read_typed(text: str, schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    """Return the value that a text means where a schema expects it.

    Args:
        schema: JSON schema of the value; a schema without a type expects text.

    Returns:
        The text as JSON if the schema allows the JSON's type; else the text if the schema allows text; else the JSON
        value, which the tool then rejects. A Python list or dictionary is read if the schema allows no text.

    Example:
        >>> read_typed("5", {"anyOf": [{"type": "integer"}, {"type": "string"}]}, {}), read_typed("5", {}, {})
        (5, '5')
    """
    leaves = [*_leaves(schema, definitions, _DEEPEST)]
    choices = [choice for leaf in leaves for choice in _choices(leaf)]
    kinds = _kinds_of_leaves(leaves)
    words = text.strip()
    for written in (text, words):
        if written in choices:
            return written
    try:
        value = _PYTHON_WORDS[words] if words in _PYTHON_WORDS else read_json(words)
    except ValueError:
        return text if "string" in kinds or kinds.isdisjoint(("array", "object")) else _read_literal(text)
    if isinstance(value, str) or not kinds.isdisjoint({*_kinds(value)} - {"string"}):
        return text if isinstance(value, str) else value
    return text if "string" in kinds else value


def _read_literal(text: str) -> Any:
    try:
        return literal_value(parse_expression(text))
    except ValueError:
        return text


def _leaves(schema: Any, definitions: Mapping[str, Any], deepest: int) -> Iterator[Mapping[str, Any]]:
    # Yields the subschemas without alternatives that make up a schema.
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
    return "string" in _kinds_of_leaves([*_leaves(schema, definitions, _DEEPEST)])


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
