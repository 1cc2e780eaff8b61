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
    # Compares equal only while no file has changed, so it can key a cache.

    tasks: FileRows  #: one task per line
    paths: FileRows | None  #: one path per line with the task's id; None if the tasks contain their paths

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
