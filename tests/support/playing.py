"""Common pieces of environment tests: turns that call a tool, data rows, published data."""

import inspect
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from turntree.envs import Env, Message, Reply, Task, ToolCall, ToolError, tool
from turntree.envs.catalogue import Entry

#: folder that holds ``data``
SHARED = Path(os.environ.get("TURNTREE_DATA") or Path(__file__).resolve().parents[2].parent / "shared")


def call(env: Env, called: str, /, **arguments: Any) -> str:
    return env.parser.format_call(ToolCall(name=called, arguments=arguments))


def use(env: Env, called: str, /, **arguments: Any) -> str:
    return str(env.step(call(env, called, **arguments))[0])


def run(desk: Any, name: str, **arguments: Any) -> str:
    return next(tool for tool in desk.tools if tool.name == name).run(arguments, owner=desk)


def made_up(function: Callable[..., Any]) -> Any:
    """Make a tool of a function without a docstring, where its description does not matter."""
    names = [name for name in inspect.signature(function).parameters if name not in ("self", "context")]
    function.__doc__ = "\n    ".join(["Do it.", "", "Args:", *(f"    {name}: What" for name in names)])
    return tool(function)


def write_rows(path: Path, rows: Iterable[Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def published(name: str) -> Path:
    """Return a folder of data outside the repository; skip the test without it."""
    if not (folder := SHARED / "data" / name).is_dir():
        pytest.skip(f"no {name} in {SHARED}; set TURNTREE_DATA to the folder that holds data/{name}")
    return folder


def play(env: Env, turns: Sequence[str], index: int = 0) -> list[tuple[str, float, bool, bool, dict[str, Any]]]:
    env.reset(seed=1, options={"index": index})
    return [env.step(turn) for turn in turns]


def halving(env: Env, form: str, low: int, high: int) -> Any:
    """Play a binary search for a number and return the last step; ``form`` formats a turn."""
    step: Any = ("", 0.0, False, False, {})
    while not (step[2] or step[3]):
        turn_draft = (low + high) // 2
        step = env.step(form.format(turn_draft))
        low, high = (turn_draft + 1, high) if "higher" in step[0].lower() else (low, turn_draft - 1)
    return step


def another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, dict):
        return {}
    return value[:-1] if isinstance(value, list) else value + ("x" if isinstance(value, str) else 1)


def arguments_of(entry: Entry, folder: Path) -> dict[str, Any]:
    """Return the arguments that make a catalogue entry; made-up data is written to ``folder``."""
    from small_airline import write_airline
    from small_bfcl import write_bfcl
    from small_shop import write_shop

    if not entry.needs_data:
        return {}
    for name, write in {"Retail": write_shop, "TauAirline": write_airline, "BFCL": write_bfcl}.items():
        if name in entry.id:
            return {"data": write(folder)}
    rows = [{"question": f"{n} and {n}?", "answer": f"It is {2 * n}.\n#### {2 * n}"} for n in range(1, 5)]
    choices = [{"question": "?", "choices": ["a", "b", "c", "d"], "answer": "C"}] * 3
    return {"data": write_rows(folder / "rows.jsonl", choices if "MMLU" in entry.id else rows)}


class Errand(Env):
    def task(self, index: int) -> Task:
        return Task(id=str(index), prompt="Do it.", answer=str(index))

    def reply(self, message: Message) -> Reply:
        return Reply(done=True)


class Shop(Env):
    """Name prices; ``air`` is the policy's mistake, ``bomb`` a failure of the environment."""

    @tool
    def price(self, item: str, count: int = 1) -> int:
        """Ask for a price.

        Args:
            item: What
            count: How many
        """
        if item == "air":
            raise ToolError("not for sale")
        if item == "bomb":
            raise OSError("gone")
        return len(item) * count

    def task(self, index: int) -> Task:
        return Task(id=str(index), prompt=f"What do {index} pens cost?", answer=str(4 * index))

    def reply(self, message: Message) -> Reply:
        return Reply(reward=float(message.content == self.current_task.answer), done=True)
