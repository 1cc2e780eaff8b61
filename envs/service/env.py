"""An agent serves a customer of a shop."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

from turntree.envs.env import Env
from turntree.envs.errors import DataError, ToolError
from turntree.envs.limits import Limits
from turntree.envs.message import Message, Role, ToolCall
from turntree.envs.reply import Reply
from turntree.envs.rows import FileRows, HubRows, Row, find_rows
from turntree.envs.service.customer import Customer, ScriptedCustomer
from turntree.envs.service.database import Database, read_tables
from turntree.envs.service.retail import TABLES, RetailDesk
from turntree.envs.task import Task

DOMAIN = "retail"


class RetailService(Env):
    """Serve a customer of a shop with sixteen tools over a database.

    A turn without a call is said to the customer. When the customer leaves, the reward is 1 if the database
    is as the task's own actions leave it and the agent told the customer everything that the task asks for,
    else 0.
    """

    static_attributes: ClassVar[frozenset[str]] = Env.static_attributes | {
        *("_tasks", "num_tasks", "folder", "policy", "customer")
    }

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
            customer: Who talks to the agent; ``None`` takes ``ScriptedCustomer``.
            limits: Bounds of an episode.
            **kwargs: Arguments of ``Env``.

        Raises:
            DataError: If a file is missing or malformed; the message names file and line.
        """
        super().__init__(limits=limits, **kwargs)
        self.folder = _folder(data)
        self.customer = customer or ScriptedCustomer()
        self.toolsets = (RetailDesk(Database(read_tables(self.folder, DOMAIN, TABLES))),)
        self._tasks = _read_tasks(find_rows(self.folder / f"{DOMAIN}_{split}_tasks.jsonl", split=split), split)
        self.num_tasks = len(self._tasks)
        policy = self.folder / f"{DOMAIN}_policy.md"
        self.policy = policy.read_text("utf-8").strip() if policy.is_file() else "You serve the customers of a shop."

    def default_system_prompt(self) -> str:
        """The shop's policy and how to call a tool."""
        call = self.parser.format_call(ToolCall(name="get_order_details", arguments={"order_id": "#W0000000"}))
        return (
            f"{self.policy}\n\nCall tools like this and wait for the result:\n{call}\n"
            "What you write without a call is said to the customer. Ask where you need an answer; a message that "
            "asks nothing ends the conversation."
        )

    def task(self, index: int) -> Task:
        """The task in row ``index``, counted from 0."""
        return self._tasks[index]

    def start(self, task: Task) -> Sequence[Message]:
        """Let the customer begin."""
        return [Message(role=Role.USER, content=self.customer.open(task))]

    def reply(self, message: Message) -> Reply:
        """Let the customer answer, or judge the work when the customer leaves."""
        desk = self.toolset(RetailDesk)
        answer = None if desk.transferred else self.customer.answer(self.current_task, self.messages)
        if answer is not None:
            return Reply(messages=[Message(role=Role.USER, content=answer)])
        task = self.current_task
        said = _said_to_customer(self.messages)
        rewards = {
            "database": float(desk.database.changes() == expected_changes(desk.database, task.metadata["actions"])),
            "told": float(all(_is_told(wanted, said) for wanted in task.metadata["outputs"])),
        }
        return Reply(reward=rewards["database"] * rewards["told"], done=True, rewards=rewards)

    @cached_property
    def _tools_json(self) -> str:
        """The published schemas where the folder has them, which must fit our tools."""
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


def expected_changes(database: Database, actions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What a task's own actions change in the database; those that the tools refuse change nothing.

    Args:
        database: Any over the same files.
        actions: ``{"name": tool, "kwargs": arguments}`` in order.
    """
    desk = RetailDesk(database.fresh())
    by_name = {tool.name: tool for tool in desk.tools}
    for action in actions:
        try:
            by_name[action["name"]].run(action["kwargs"], owner=desk)
        except ToolError:
            continue
    return desk.database.changes()


def _said_to_customer(dialogue: Sequence[Message]) -> list[str]:
    """The agent's words that no tool answered: neither calls nor what was meant to be one."""
    following = [*(message.role for message in dialogue[1:]), None]
    return [
        message.content
        for message, after in zip(dialogue, following, strict=True)
        if message.role is Role.ASSISTANT and after is not Role.TOOL
    ]


def _is_told(wanted: str, said: Sequence[str]) -> bool:
    return any(wanted.lower() in text.lower().replace(",", "") for text in said)


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
