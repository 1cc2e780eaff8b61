"""Checks dataclass fields read from a file against their type hints.

Not covered: arrays, and relations between fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache, reduce
from math import inf, isfinite
from operator import or_
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from turntree.envs.errors import nearest_hint

Settings = TypeVar("Settings")
_INT_LIMIT = 1 << 63
_MAX_TOKEN = (1 << 31) - 1  #: largest token id; integers in a sequence are token ids
_MAX_FLOAT = 1e300  #: largest magnitude of a finite number, so that sums stay finite


def misfit(value: Any, hint: Any) -> str:
    """Return the path of fields to a value that does not fit its type hint, and the problem; empty if all fit.

    Integers have 64 bits. Numbers may be NaN or infinite, but not booleans.

    >>> misfit((3, True), tuple[int, ...]), misfit({"a": "b"}, Mapping[str, float]), misfit(None, int | None)
    ('expected token ids, got a bool', ".a: expected a number, got 'b'", '')
    """
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return ""
    if origin in (Union, UnionType):
        problems = [misfit(value, option) for option in args]
        return "" if "" in problems else problems[0]
    if origin is tuple:
        return _sequence(value, args[0])
    if origin is not None and not issubclass(origin, Mapping):  # an array, which is not checked
        return ""
    if origin is not None:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            return f"expected values by name, got {value!r:.60}"
        return next(
            (f".{name}{_with_path(problem)}" for name, item in value.items() if (problem := misfit(item, args[1]))), ""
        )
    if hasattr(hint, "__dataclass_fields__") and isinstance(value, hint):
        hints = _hints(hint)
        named = ((field.name, misfit(getattr(value, field.name), hints[field.name])) for field in fields(hint))
        return next((f".{name}{_with_path(problem)}" for name, problem in named if problem), "")
    return "" if _fits(value, hint) else f"expected {_TYPE_WORDS.get(hint, f'a {hint.__name__}')}, got {value!r:.60}"


_SIMPLE: dict[str, Any] = {
    **{"str": str, "int": int, "float": float, "bool": bool, "None": NoneType, "Path": str},
    **{"Mapping": Mapping[str, Any], "Sequence": list | tuple},
}


def misfit_by_name(value: Any, hint: str) -> str:
    """Check a value against the text of a type hint; return the problem, or "" if it fits or the hint is not simple.

    >>> misfit_by_name("x", "int | None"), misfit_by_name("ab", "Sequence[str]"), misfit_by_name("x", "Limits")
    ("expected a whole number, got 'x'", "expected a list, got 'ab'", '')
    """
    names = [name.partition("[")[0].rpartition(".")[2] for name in hint.split(" | ")]
    kinds = [_SIMPLE.get(name) for name in names]
    return "" if None in kinds else misfit(value, reduce(or_, kinds))


def read_settings(kind: type[Settings], values: Mapping[str, Any], where: str) -> Settings:
    """Create settings from a mapping; ``where`` is the path of the settings in error messages.

    Raises:
        ValueError: If a key is unknown or missing, or a value has the wrong type or is out of range.
    """
    known = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]
    for key, value in values.items():
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}; {nearest_hint(key, list(known), 'it takes')}")
        if problem := misfit_by_name(value, known[key]):
            raise ValueError(f"{where}.{key}: {problem}")
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:  # a key is missing, or a value out of range
        raise ValueError(f"{where}: {error}") from error


_TYPE_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", NoneType: "nothing"}


def _with_path(problem: str) -> str:
    return problem if problem.startswith((".", "[")) else f": {problem}"


def _sequence(values: Any, hint: Any) -> str:
    if not isinstance(values, tuple):
        return f"expected a list, got {values!r:.60}"
    # Check the set of the items' types: for long token sequences, this is many times faster than checking each item.
    kinds = {*map(type, values)}
    if hint is int:
        if kinds - {int}:
            return f"expected token ids, got a {(kinds - {int}).pop().__name__}"
        low, high = min(values, default=0), max(values, default=0)
        return "" if low >= 0 and high <= _MAX_TOKEN else f"expected token ids, got {low if low < 0 else high!r:.60}"
    if hint is bool and kinds <= {bool}:
        return ""
    if hint is float and kinds <= {float}:
        largest = max((abs(item) for item in values if isfinite(item)), default=0.0)
        return "" if largest <= _MAX_FLOAT else f"expected numbers, got one of magnitude {largest:g}"
    problems = ((number, misfit(item, hint)) for number, item in enumerate(values))
    return next((f"[{number}]{_with_path(problem)}" for number, problem in problems if problem), "")


def _fits(value: Any, hint: Any) -> bool:
    if hint is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and not (abs(value) > _MAX_FLOAT and abs(value) != inf)
    if hint is int:
        return type(value) is int and -_INT_LIMIT <= value < _INT_LIMIT
    return isinstance(value, hint)


@lru_cache(maxsize=64)
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)
