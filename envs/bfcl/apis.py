"""The simulated APIs by the names that the tasks use, and the tools that they offer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from turntree.envs.bfcl.simulated.file_system import FileSystem
from turntree.envs.bfcl.simulated.mathematics import Mathematics
from turntree.envs.bfcl.simulated.messages import Messages
from turntree.envs.bfcl.simulated.posts import Posts
from turntree.envs.bfcl.simulated.simulator import Simulator
from turntree.envs.bfcl.simulated.tickets import Tickets
from turntree.envs.bfcl.simulated.trading import Trading
from turntree.envs.bfcl.simulated.travel import Travel
from turntree.envs.bfcl.simulated.vehicle import Vehicle
from turntree.envs.data.published import fitting_schemas
from turntree.envs.data.rows import FileRows
from turntree.envs.tools.tool import Tool

APIS: Mapping[str, type[Simulator]] = {
    "GorillaFileSystem": FileSystem,
    "MathAPI": Mathematics,
    "MessageAPI": Messages,
    "TicketAPI": Tickets,
    "TradingBot": Trading,
    "TravelAPI": Travel,
    "TwitterAPI": Posts,
    "VehicleControlAPI": Vehicle,
}
TOOLS: Mapping[str, Tool] = {tool.name: tool for api in APIS.values() for tool in api.tools}
_JSON_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


@lru_cache(maxsize=4096)
def tools_of(apis: tuple[str, ...], withheld: frozenset[str]) -> tuple[Tool, ...]:
    """The tools of some APIs without those that are withheld, in the order of ``APIS``."""
    named = (tool for name, api in APIS.items() if name in apis for tool in api.tools)
    return tuple(tool for tool in named if tool.name not in withheld)


@lru_cache(maxsize=8)
def read_documents(files: tuple[FileRows, ...]) -> Mapping[str, dict[str, Any]]:
    """The published function documents as OpenAI schemas, by name; those of other APIs are left out.

    Raises:
        DataError: If a document has other arguments than our tool.
    """
    ours = {name: tool.schema for name, tool in TOOLS.items()}
    fitting: dict[str, dict[str, Any]] = {}
    for rows in files:
        schemas = [_schema(row.fields) for row in rows.read() if row.fields.get("name") in TOOLS]
        fitting.update((schema["function"]["name"], schema) for schema in fitting_schemas(rows.path, schemas, ours))
    return fitting


def written(tools: Iterable[Tool], documents: Mapping[str, Mapping[str, Any]]) -> str:
    """The schemas of tools as JSON, each as published if it is."""
    return json.dumps([documents.get(tool.name, tool.schema) for tool in tools])


def _schema(document: Mapping[str, Any]) -> dict[str, Any]:
    function = {key: document[key] for key in ("name", "description")}
    parameters = dict(_converted(document["parameters"]))
    return {"type": "function", "function": {**function, "parameters": parameters}}


def _converted(schema: Any) -> Any:
    """A schema with the types of JSON in place of Python's."""
    if isinstance(schema, list):
        return [_converted(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {key: _converted(value) for key, value in schema.items()}
    kind = converted.get("type")
    return converted | ({"type": _JSON_TYPES.get(kind, kind)} if isinstance(kind, str) else {})
