"""Schemas of tools as their publisher wrote them, shown in place of our own where they fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from turntree.envs.errors import DataError

Schema = Mapping[str, Any]


def fitting_schemas(file: Path, published: Iterable[Schema], ours: Mapping[str, Schema]) -> list[dict[str, Any]]:
    """The published schemas, each with the arguments of our tool of its name.

    Args:
        file: Where they stand, for error messages.
        published: OpenAI schemas in the order of the file.

    Raises:
        DataError: If one is of no tool of ours or has other arguments; the message names file and line.
    """
    schemas = []
    for number, schema in enumerate(published, start=1):
        name = schema["function"]["name"]
        if name not in ours or _shape(schema) != _shape(ours[name]):
            raise DataError(f"{file}:{number}: the tool {name!r} is not one of ours, or takes other arguments")
        schemas.append(dict(schema))
    return schemas


def _shape(schema: Schema) -> Any:
    """The arguments of a tool without their descriptions."""
    parameters = schema["function"]["parameters"]
    kinds = {name: (kind.get("type"), tuple(kind.get("enum", ()))) for name, kind in parameters["properties"].items()}
    return kinds, sorted(parameters.get("required", ()))
