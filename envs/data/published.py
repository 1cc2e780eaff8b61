from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from turntree.envs.errors import DataError

Schema = Mapping[str, Any]


def fitting_schemas(file: Path, published: Iterable[Schema], ours: Mapping[str, Schema]) -> list[dict[str, Any]]:
    """Return the published schemas, checked against our tools of the same names.

    Raises:
        DataError: If a schema names no tool of ours or has other arguments; the message names file and line.
    """
    schemas = []
    for number, schema in enumerate(published, start=1):
        name = schema["function"]["name"]
        if name not in ours or _shape(schema) != _shape(ours[name]):
            raise DataError(f"{file}:{number}: the tool {name!r} is not one of ours, or takes other arguments")
        schemas.append(dict(schema))
    return schemas


def _shape(schema: Schema) -> Any:
    parameters = schema["function"]["parameters"]
    kinds = {name: (kind.get("type"), tuple(kind.get("enum", ()))) for name, kind in parameters["properties"].items()}
    return kinds, sorted(parameters.get("required", ()))
