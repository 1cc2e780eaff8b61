"""The files of the tasks: those of the installed package, or a folder with the same or with one file a set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turntree.envs.bfcl.apis import package_data
from turntree.envs.data.rows import FileRows, Row, file_rows
from turntree.envs.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    """The files of a set; equal to others only while none of them is changed."""

    tasks: FileRows
    """One task a line."""
    paths: FileRows | None
    """One path a line, with the task's id; ``None`` where tasks have theirs themselves."""

    def rows(self) -> Iterator[Row]:
        """Every task with its path."""
        paths: Mapping[Any, Any] = {}
        if self.paths is not None:
            paths = {row.fields.get("id"): row.fields.get("ground_truth") for row in self.paths.read()}
        for row in self.tasks.read():
            own = {} if self.paths is None else {"ground_truth": paths.get(row.fields.get("id"))}
            yield Row(where=row.where, fields={**row.fields, **own})


def find_files(data: str | Path | None, split: str) -> TaskFiles:
    """Find the files of a set without reading them.

    Args:
        data: The folder; ``None`` takes the installed package's.
        split: The set, for example ``base``.

    Raises:
        DataError: If there is no such folder, or it has no such set.
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
