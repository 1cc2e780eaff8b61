"""Read the rows of a set as tasks: the user's messages, the calls of each turn, and the tools.

Invariant: each call names a tool and passes its arguments by name, so that it runs like a call of the policy.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from turntree.envs.bfcl.apis import APIS, all_api_tools, package_data
from turntree.envs.data.rows import FileRows, Row, file_rows
from turntree.envs.errors import DataError
from turntree.envs.task import Task
from turntree.envs.tools.schema import tool_parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    # Compares equal only while no file has changed, so it can key a cache.

    tasks: FileRows  #: one task per line
    paths: FileRows | None  #: a task's id and its path (its own calls) per line; None if ``tasks`` has the paths

    def rows(self) -> Iterator[Row]:
        paths: Mapping[Any, Any] = {}
        if self.paths is not None:
            paths = {row.fields.get("id"): row.fields.get("ground_truth") for row in self.paths.read()}
        for row in self.tasks.read():
            own = {} if self.paths is None else {"ground_truth": paths.get(row.fields.get("id"))}
            yield Row(where=row.where, fields={**row.fields, **own})


def find_files(data: str | Path | None, split: str) -> TaskFiles:
    """Find the files of a set (such as ``base``) without reading them; ``None`` looks in the installed package.

    Raises:
        DataError: If the folder or the set does not exist.
    """
    folder = package_data() if data is None else Path(data).expanduser()
    if not folder.is_dir():
        raise DataError(f"expected data=FOLDER with BFCL's multi_turn_base.jsonl and so on, got {str(folder)!r}")
    ours = folder / f"multi_turn_{split}.jsonl"
    if ours.is_file():
        return TaskFiles(tasks=file_rows(ours), paths=None)
    theirs = sorted(folder.glob(f"BFCL_v*_multi_turn_{split}.json"))
    if not theirs:
        raise DataError(f"the folder {folder} has neither {ours.name} nor BFCL_v4_multi_turn_{split}.json")
    answers = folder / "possible_answer" / theirs[-1].name
    if not answers.is_file():
        raise DataError(f"{theirs[-1]} has no paths of its own: expected {answers}")
    return TaskFiles(tasks=file_rows(theirs[-1]), paths=file_rows(answers))


LONG = "long_context"  #: the set for which the package adds much more data to the APIs than the rows have
Call = dict[str, Any]


@lru_cache(maxsize=8)
def read_tasks(files: TaskFiles, split: str) -> tuple[Task, ...]:
    tasks = tuple(_task(row, split) for row in files.rows())
    if not tasks:
        raise DataError(f"{files.tasks.path}: expected tasks, got none")
    return tasks


def _task(row: Row, split: str) -> Task:
    path = [[_call(text, row.where) for text in turn] for turn in _field(row, "ground_truth", list)]
    world = _field(row, "initial_config", dict)
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
            "apis": list(dict.fromkeys(apis)),
            "world": {name: value for name, value in world.items() if name in apis},
            "long_context": split == LONG,
            "questions": questions,
            "path": path,
            "later": _later(row.fields.get("missed_function") or {}, path),
        },
    )


def _later(missed: Mapping[str, Sequence[str]], path: list[list[Call]]) -> dict[str, int]:
    # A withheld tool is offered in the turn that the data name, or earlier if an earlier turn needs it.
    turns = {name: int(turn) for turn, names in missed.items() for name in names}
    for number, calls in reversed(list(enumerate(path))):
        turns.update((call["name"], min(number, turns[call["name"]])) for call in calls if call["name"] in turns)
    return turns


def _field(row: Row, name: str, kind: type) -> Any:
    value = row.fields.get(name)
    if not isinstance(value, kind):
        raise DataError(f"{row.where}: the field {name!r} must be a {kind.__name__}, got {value!r:.80}")
    return value


def _call(text: str, where: str) -> Call:
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("no call")
        tool = all_api_tools()[call.func.id]
        names = [parameter.name for parameter in tool_parameters(tool.function)] if call.args else []
        arguments = dict(zip(names, map(ast.literal_eval, call.args), strict=False))
        arguments |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (KeyError, SyntaxError, ValueError) as error:
        raise DataError(f"{where}: the field 'ground_truth' must hold calls of the APIs, got {text!r:.80}") from error
    return {"name": tool.name, "arguments": arguments}
