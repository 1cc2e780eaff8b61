from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

from turntree.envs.data.json_files import read_text
from turntree.envs.data.rows import FileRows, HubRows, Row, data_folder, find_rows, no_rows
from turntree.envs.errors import DataError
from turntree.envs.limits import Limits
from turntree.envs.message import ToolCall
from turntree.envs.service.airline import AirlineDesk
from turntree.envs.service.airline_tasks import airline_task
from turntree.envs.service.airline_world import AIRLINE_POLICY, airline
from turntree.envs.service.database import Database, read_tables
from turntree.envs.service.desk import Desk
from turntree.envs.service.retail import TABLES as RETAIL_TABLES
from turntree.envs.service.retail import RetailDesk
from turntree.envs.service.service import Service, SimulatedUser
from turntree.envs.service.tau_airline import TABLES as AIRLINE_TABLES
from turntree.envs.service.tau_airline import TauAirlineDesk
from turntree.envs.task import Task

Schema = Mapping[str, Any]


def fitting_schemas(file: Path, published: Iterable[Schema], ours: Mapping[str, Schema]) -> list[dict[str, Any]]:
    """Check that published tool schemas fit the environment's tools of the same names (``ours``), and return them.

    Raises:
        DataError: If a schema names an unknown tool or has other arguments; the message names file and line.
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


class TauService(Service):
    """Base of tau-bench's domains: database, tasks, policy and schemas read from one folder."""

    static_attributes: ClassVar[frozenset[str]] = Service.static_attributes | {"_tasks", "num_tasks", "folder"}
    domain: ClassVar[str]  #: tau-bench's name of the domain, which is part of the file names
    tables: ClassVar[Sequence[str]]
    desk: ClassVar[type[Desk]]  #: the tools over ``tables``
    default_limits = Limits(max_turns=40)

    def __init__(
        self,
        *,
        data: str | Path | None = None,
        split: str = "test",
        simulated_user: SimulatedUser | None = None,
        **kwargs: Any,
    ) -> None:
        """Read the database and the tasks.

        Args:
            data: Folder with ``db_DOMAIN_TABLE.jsonl`` for each table (or tau-bench's own ``TABLE.json``),
                ``DOMAIN_SPLIT_tasks.jsonl``, and optionally ``DOMAIN_policy.md`` and ``DOMAIN_tools_schema.jsonl``;
                ``None`` uses ``$TURNTREE_DATA/data/tau_bench``.
            split: Split of the tasks.
            simulated_user: The customer that talks to the agent; ``None`` uses ``ScriptedUser``.
            **kwargs: Arguments of ``Env``.

        Raises:
            DataError: If a file is missing or malformed; the message names file and line.
        """
        self.folder = data_folder(data, name="tau_bench", holds=f"tau-bench's {self.domain} database and tasks")
        desk = self.desk(Database(read_tables(self.folder, self.domain, self.tables)))
        file = self.folder / f"{self.domain}_policy.md"
        policy = read_text(file).strip() if file.is_file() else "You serve the customers of a company."
        super().__init__(desk, policy=policy, simulated_user=simulated_user, **kwargs)
        tasks = find_rows(self.folder / f"{self.domain}_{split}_tasks.jsonl", split=split)
        self._tasks = _read_tasks(tasks, f"{self.domain}/{split}", frozenset(tool.name for tool in desk.tools))
        self.num_tasks = len(self._tasks)

    def task(self, index: int) -> Task:
        return self._tasks[index]

    @cached_property
    def _tools_json(self) -> str:
        # Show the published schemas to the policy, if the folder has them; they must match this environment's tools.
        ours = {tool.name: tool.schema for tool in self.offered_tools}
        file = self.folder / f"{self.domain}_tools_schema.jsonl"
        if not file.is_file():
            return json.dumps(list(ours.values()))
        return json.dumps(fitting_schemas(file, [row.fields for row in find_rows(file, split="").read()], ours))


class RetailService(TauService):
    """Serve a customer of a shop with sixteen tools over a database."""

    step_inline = True
    forkable = True
    domain = "retail"
    tables = RETAIL_TABLES
    desk = RetailDesk
    example_call = ToolCall(name="get_order_details", arguments={"order_id": "#W0000000"})


class TauAirline(TauService):
    """Serve a customer of tau-bench's airline with fourteen tools over flights, reservations and customers."""

    step_inline = True
    forkable = True
    domain = "airline"
    tables = AIRLINE_TABLES
    desk = TauAirlineDesk
    example_call = ToolCall(name="get_reservation_details", arguments={"reservation_id": "AAAAAA"})


@lru_cache(maxsize=8)
def _read_tasks(rows: FileRows | HubRows, name: str, tools: frozenset[str]) -> tuple[Task, ...]:
    tasks = tuple(_read_task(row, name, number, tools) for number, row in enumerate(rows.read()))
    if not tasks:
        action = {"name": "get_order_details", "kwargs": {"order_id": "#W0000000"}}
        raise no_rows(rows, {"instruction": "Ask where your order is.", "actions": [action], "outputs": []})
    return tasks


def _read_task(row: Row, name: str, number: int, tools: frozenset[str]) -> Task:
    actions, outputs = row.fields.get("actions"), row.fields.get("outputs", [])
    if not isinstance(actions, list) or not all(
        isinstance(action, dict) and action.get("name") in tools and isinstance(action.get("kwargs"), dict)
        for action in actions
    ):
        raise DataError(f"{row.where}: the field 'actions' must list objects with a tool's 'name' and its 'kwargs'")
    if not isinstance(outputs, list) or not all(isinstance(output, str) for output in outputs):
        raise DataError(f"{row.where}: the field 'outputs' must be a list of texts, got {outputs!r:.80}")
    return Task(
        id=row.text("id") if row.fields.get("id") else f"tau/{name}/{number}",
        prompt=row.text("instruction"),
        answer=json.dumps(actions),
        data_source=f"tau-bench/{name.partition('/')[0]}",
        metadata={"actions": actions, "outputs": outputs},
    )


class AirlineService(Service):
    """Serve a customer of a fictional airline with fourteen tools over its flights, customers and bookings.

    The airline is generated: no files are needed, and the number of tasks is unlimited.
    """

    step_inline = True
    forkable = True
    static_attributes: ClassVar[frozenset[str]] = Service.static_attributes | {"split"}
    example_call = ToolCall(name="get_booking", arguments={"booking_id": "B1001"})
    default_limits = Limits(max_turns=24)

    def __init__(self, *, split: str = "train", simulated_user: SimulatedUser | None = None, **kwargs: Any) -> None:
        """Set up the desk.

        Args:
            split: Name under which tasks are drawn; another name gives other tasks.
            simulated_user: The customer that talks to the agent; ``None`` uses ``ScriptedUser``.
            **kwargs: Arguments of ``Env``.
        """
        desk = AirlineDesk(Database(airline()))
        super().__init__(desk, policy=AIRLINE_POLICY, simulated_user=simulated_user, **kwargs)
        self.split = split

    def task(self, index: int) -> Task:
        return airline_task(self.split, index)
