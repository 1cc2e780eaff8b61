"""Arguments that satisfy a tool's schema but make no sense; a tool must answer them too."""

import itertools
from collections.abc import Iterator
from typing import Any

from turntree.envs import Tool

_ROUNDS = 8
_ODD: dict[str, list[Any]] = {
    "string": ["", "..", "x" * 5_000, "\x00", "2026-13-99", "NaN", "USD"],
    "integer": [0, -1, 10**400],
    "number": [0, -1.5, 10**400, float("nan"), float("inf")],
    "boolean": [True, False],
    "array": [[], ["x"], [10**400], [float("nan")], [{}], [{"flight_number": "x", "date": "x", "amount": 10**400}]],
    "object": [{}, {"priority": "x"}, {"title": 10**400}],
}


def odd_arguments(tool: Tool) -> Iterator[dict[str, Any]]:
    kinds = {name: schema.get("type", "string") for name, schema in tool.properties.items()}
    columns = [
        itertools.cycle(schema.get("enum") or _ODD[kinds[name] if isinstance(kinds[name], str) else kinds[name][0]])
        for name, schema in tool.properties.items()
    ]
    for _ in range(_ROUNDS if columns else 1):
        yield {name: next(column) for name, column in zip(kinds, columns, strict=True)}
