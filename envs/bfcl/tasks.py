"""The rows of a set as tasks: what the user says, what each turn has to do, which tools there are.

Invariant: a call of a path names one of our tools and has its arguments by name, so that it runs like the policy's.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from turntree.envs.bfcl.apis import APIS, TOOLS
from turntree.envs.bfcl.files import TaskFiles
from turntree.envs.bfcl.long_context import Padding, lengthened, padding_of
from turntree.envs.data.rows import Row
from turntree.envs.errors import DataError
from turntree.envs.task import Task

LONG = "long_context"
"""The set whose worlds are larger than its rows."""
Call = dict[str, Any]
"""``{"name": ..., "arguments": {...}}``."""


@lru_cache(maxsize=8)
def read_tasks(files: TaskFiles, split: str) -> tuple[Task, ...]:
    """The tasks of a set.

    Raises:
        DataError: If a row is malformed; the message names file and line.
    """
    read = list(files.rows())
    paths = [_path(row) for row in read]
    texts = [list(_texts(path)) for path in paths]
    worlds: list[Mapping[str, Any]] = [_field(row, "initial_config", dict) for row in read]
    if split == LONG:
        padding: Padding = padding_of(zip(worlds, texts, strict=True))
        worlds = [lengthened(world, own, padding) for world, own in zip(worlds, texts, strict=True)]
    if not read:
        raise DataError(f"{files.tasks.path}: expected tasks, got none")
    return tuple(_task(row, path, world, split) for row, path, world in zip(read, paths, worlds, strict=True))


def _task(row: Row, path: list[list[Call]], world: Mapping[str, Any], split: str) -> Task:
    apis = _field(row, "involved_classes", list)
    unknown = sorted(set(apis) - set(APIS))
    if unknown:
        raise DataError(f"{row.where}: the field 'involved_classes' names {unknown[0]!r}; known are {', '.join(APIS)}")
    questions = ["\n\n".join(message["content"] for message in turn) for turn in _field(row, "question", list)]
    if len(questions) != len(path) or not questions[0]:
        raise DataError(f"{row.where}: each turn needs its question and its calls, and the first says something")
    return Task(
        id=row.text("id"),
        prompt=questions[0],
        answer=json.dumps(path),
        data_source=f"bfcl/multi_turn_{split}",
        metadata={
            "apis": [name for name in APIS if name in apis],
            "world": {name: value for name, value in world.items() if name in apis},
            "questions": questions,
            "path": path,
            "excluded": row.fields.get("excluded_function") or [],
            "later": _later(row.fields.get("missed_function") or {}, path),
        },
    )


def _later(missed: Mapping[str, Sequence[str]], path: list[list[Call]]) -> dict[str, int]:
    """The turn from which each tool is offered that is not at first: the one named, or an earlier one that needs it."""
    turns = {name: int(turn) for turn, names in missed.items() for name in names}
    for number, calls in reversed(list(enumerate(path))):
        turns.update((call["name"], min(number, turns[call["name"]])) for call in calls if call["name"] in turns)
    return turns


def _field(row: Row, name: str, kind: type) -> Any:
    value = row.fields.get(name)
    if not isinstance(value, kind):
        raise DataError(f"{row.where}: the field {name!r} must be a {kind.__name__}, got {value!r:.80}")
    return value


def _path(row: Row) -> list[list[Call]]:
    return [[_call(text, row.where) for text in turn] for turn in _field(row, "ground_truth", list)]


def _call(text: str, where: str) -> Call:
    """A call written as Python."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("no call")
        tool = TOOLS[call.func.id]
        arguments = dict(zip(tool.properties, map(ast.literal_eval, call.args), strict=False))
        arguments |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (KeyError, SyntaxError, ValueError) as error:
        raise DataError(f"{where}: the field 'ground_truth' must hold calls of our tools, got {text!r:.80}") from error
    return {"name": tool.name, "arguments": arguments}


def _texts(path: Sequence[Sequence[Call]]) -> Iterator[str]:
    """All text arguments of a path."""
    for turn in path:
        for call in turn:
            yield from (value for value in call["arguments"].values() if isinstance(value, str))
