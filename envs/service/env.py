"""An agent serves a customer of a shop."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

from turntree.envs.data.rows import FileRows, HubRows, Row, find_rows
from turntree.envs.errors import DataError
from turntree.envs.limits import Limits
from turntree.envs.message import ToolCall
from turntree.envs.service.customer import Customer
from turntree.envs.service.database import Database, read_tables
from turntree.envs.service.retail import TABLES, RetailDesk
from turntree.envs.service.service import Service
from turntree.envs.task import Task

DOMAIN = "retail"


class RetailService(Service):
    """Serve a customer of a shop with sixteen tools over a database."""

    quick = True
    static_attributes: ClassVar[frozenset[str]] = Service.static_attributes | {"_tasks", "num_tasks", "folder"}
    example = ToolCall(name="get_order_details", arguments={"order_id": "#W0000000"})

    def __init__(
        self,
        *,
        data: str | Path | None = None,
        split: str = "test",
        customer: Customer | None = None,
        limits: Limits = Limits(max_turns=40),  # noqa: B008 - frozen
        **kwargs: Any,
    ) -> None:
        """Read the database and the tasks.

        Args:
            data: Folder with ``db_retail_users.jsonl``, ``..._orders`` and ``..._products`` (or tau-bench's own
                ``users.json`` and so on), ``retail_SPLIT_tasks.jsonl``, and if there are any
                ``retail_policy.md`` and ``retail_tools_schema.jsonl``; ``None`` takes
                ``$TURNTREE_DATA/data/tau_bench``.
            split: Tasks to play.
            customer: The customer that talks to the agent; ``None`` uses ``ScriptedCustomer``.
            limits: Bounds of an episode.
            **kwargs: Arguments of ``Env``.

        Raises:
            DataError: If a file is missing or malformed; the message names file and line.
        """
        self.folder = _folder(data)
        desk = RetailDesk(Database(read_tables(self.folder, DOMAIN, TABLES)))
        file = self.folder / f"{DOMAIN}_policy.md"
        policy = file.read_text("utf-8").strip() if file.is_file() else "You serve the customers of a shop."
        super().__init__(desk, policy=policy, customer=customer, limits=limits, **kwargs)
        self._tasks = _read_tasks(find_rows(self.folder / f"{DOMAIN}_{split}_tasks.jsonl", split=split), split)
        self.num_tasks = len(self._tasks)

    def task(self, index: int) -> Task:
        """The task in row ``index``, counted from 0."""
        return self._tasks[index]

    @cached_property
    def _tools_json(self) -> str:
        """The published schemas if the folder has them; they must match this environment's tools."""
        ours = {tool.name: tool.schema for tool in self.offered_tools}
        file = self.folder / f"{DOMAIN}_tools_schema.jsonl"
        if not file.is_file():
            return json.dumps(list(ours.values()))
        published = [dict(row.fields) for row in find_rows(file, split="").read()]
        for number, schema in enumerate(published, start=1):
            name = schema["function"]["name"]
            if name not in ours or _shape(schema) != _shape(ours[name]):
                raise DataError(f"{file}:{number}: the tool {name!r} is not one of ours, or takes other arguments")
        return json.dumps(published)


def _shape(schema: Mapping[str, Any]) -> Any:
    """The arguments of a tool without their descriptions."""
    parameters = schema["function"]["parameters"]
    kinds = {name: (kind.get("type"), tuple(kind.get("enum", ()))) for name, kind in parameters["properties"].items()}
    return kinds, sorted(parameters.get("required", ()))


def _folder(data: str | Path | None) -> Path:
    root = os.environ.get("TURNTREE_DATA")
    if data is None and root:
        data = Path(root) / "data" / "tau_bench"
    if data is None or not Path(data).expanduser().is_dir():
        got = "nothing" if data is None else repr(str(data))
        raise DataError(f"expected data=FOLDER with tau-bench's retail database and tasks, got {got}")
    return Path(data).expanduser()


@lru_cache(maxsize=8)
def _read_tasks(rows: FileRows | HubRows, split: str) -> tuple[Task, ...]:
    tasks = tuple(_read_task(row, f"tau/{DOMAIN}/{split}/{number}") for number, row in enumerate(rows.read()))
    if not tasks:
        raise DataError(f"expected tasks with an instruction and actions, got none in {rows}")
    return tasks


def _read_task(row: Row, default_id: str) -> Task:
    actions, outputs = row.fields.get("actions"), row.fields.get("outputs", [])
    names = {tool.name for tool in RetailDesk.tools}
    if not isinstance(actions, list) or not all(
        isinstance(action, dict) and action.get("name") in names and isinstance(action.get("kwargs"), dict)
        for action in actions
    ):
        raise DataError(f"{row.where}: the field 'actions' must list objects with a tool's 'name' and its 'kwargs'")
    if not isinstance(outputs, list) or not all(isinstance(output, str) for output in outputs):
        raise DataError(f"{row.where}: the field 'outputs' must be a list of texts, got {outputs!r:.80}")
    return Task(
        id=row.text("id") if row.fields.get("id") else default_id,
        prompt=row.text("instruction"),
        answer=json.dumps(actions),
        data_source="tau-bench/retail",
        metadata={"actions": actions, "outputs": outputs},
    )
