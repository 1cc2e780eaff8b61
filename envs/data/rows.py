"""Read rows of tasks from JSONL, Parquet or the Hugging Face hub.

Invariant: every row knows its file and line, so that an error about a malformed row can name them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turntree.envs.data.hub import hub_asked_once
from turntree.envs.data.json_files import json_lines
from turntree.envs.errors import DataError, MissingExtra, install_command


def default_folder(name: str) -> Path | None:
    """Return ``$TURNTREE_DATA/data/NAME``, which need not exist; ``None`` if the variable is not set."""
    root = os.environ.get("TURNTREE_DATA")
    return Path(root) / "data" / name if root else None


def cache_folder() -> Path:
    """Return the cache folder: ``TURNTREE_CACHE``, or ``~/.cache/turntree``."""
    return Path(os.environ.get("TURNTREE_CACHE") or Path.home() / ".cache" / "turntree")


def data_folder(data: str | Path | None, *, name: str, holds: str) -> Path:
    """Return the folder of a data set with several files; ``None`` takes ``default_folder(name)``.

    ``holds`` describes the expected files for the error message.

    Raises:
        DataError: If the folder does not exist.
    """
    folder = default_folder(name) if data is None else Path(data)
    if folder is None or not folder.expanduser().is_dir():
        got = "nothing" if folder is None else repr(str(folder))
        raise DataError(f"expected data=FOLDER with {holds}, got {got}")
    return folder.expanduser()


_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+|[\w-]+")
_SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    where: str  #: file and line, for error messages
    fields: Mapping[str, Any]  #: columns by name

    def column(self, *names: str) -> str:
        """Return the first of these names that is a column of the row.

        Raises:
            DataError: If the row has none of these columns; the message tells how to rename a column.
        """
        for name in names:
            if name in self.fields:
                return name
        others, columns = f" (or {', '.join(names[1:])})" if names[1:] else "", ", ".join(self.fields) or "none"
        raise DataError(
            f"{self.where}: the field {names[0]!r} is missing{others}; the row has: {columns}. "
            f"Rename the column that holds it: row[{names[0]!r}] = row.pop({next(iter(self.fields), 'COLUMN')!r})"
        )

    def text(self, field: str) -> str:
        """Return a field that must be non-empty text.

        Raises:
            DataError: If the field is missing, empty or not text.
        """
        value = self.fields[self.column(field)]
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{self.where}: the field {field!r} must be a text that is not empty, got {value!r}")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    # An instance equals another only if the file has not changed between them, so it can be the key of a cache.

    path: Path  #: a .parquet file, or one JSON object per line
    stamp: tuple[int, int]  #: modification time in nanoseconds, size in bytes

    def __str__(self) -> str:
        return str(self.path)

    def read(self) -> Iterator[Row]:
        """Read the rows in order.

        Raises:
            DataError: If the file or one of its lines cannot be read.
            MissingExtra: If a Parquet file needs pyarrow and it is not installed.
        """
        return _read_parquet(self.path) if self.path.suffix == ".parquet" else _read_jsonl(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRows:
    name: str  #: id, such as openai/gsm8k
    subset: str | None  #: configuration name; None if the data set has only one
    split: str

    def read(self) -> Iterator[Row]:
        """Download the rows, or read them from the library's cache, in order.

        Raises:
            DataError: If the data set cannot be loaded.
            MissingExtra: If the ``datasets`` library is not installed.
        """
        try:
            from datasets import load_dataset
        except ImportError as error:
            raise _missing("datasets", f"the data set {self.name!r}") from error
        with hub_asked_once() as alone:
            try:
                rows = load_dataset(self.name, self.subset, split=self.split)
            except (OSError, ValueError) as error:
                reason = error if alone is None else f"{alone}, and it is not in the cache"
                raise DataError(
                    f"cannot load the data set {self.name!r}, subset {self.subset!r}, split {self.split!r}: "
                    f"{reason}; to read a file instead, give its path with the suffix .jsonl or .parquet"
                ) from error
        for number, fields in enumerate(rows, start=1):
            yield Row(where=f"{self.name} [{self.split}], row {number}", fields=fields)


def find_rows(data: str | Path, *, split: str, subset: str | None = None) -> FileRows | HubRows:
    """Locate rows without reading them.

    Args:
        data: A ``.jsonl`` or ``.parquet`` file, a folder that holds ``SPLIT.jsonl`` or
            ``SPLIT.parquet``, or the id of a data set on the Hugging Face hub.
        split: Split of the folder or the data set.
        subset: Configuration name on the hub.

    Raises:
        DataError: If ``data`` is neither a file, nor a folder, nor an id, or if the file is missing.
    """
    path = Path(data).expanduser()
    if path.is_dir():
        return file_rows(_split_file(path, split))
    if path.suffix in _SUFFIXES:
        return file_rows(path)
    if path.exists():
        raise DataError(f"expected a .jsonl or .parquet file, got {path}")
    if isinstance(data, str) and _HUB_ID.fullmatch(data):
        return HubRows(name=data, subset=subset, split=split)
    raise DataError(
        f"expected a .jsonl or .parquet file, a folder with {split}.jsonl, or a Hugging Face data set id; "
        f"got {str(data)!r}, which does not exist"
    )


def _split_file(folder: Path, split: str) -> Path:
    for suffix in _SUFFIXES:
        path = folder / f"{split}{suffix}"
        if path.exists():
            return path
    raise DataError(f"the folder {folder} holds neither {split}.jsonl nor {split}.parquet")


def file_rows(path: Path) -> FileRows:
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    return FileRows(path=path, stamp=(stat.st_mtime_ns, stat.st_size))


def _read_jsonl(path: Path) -> Iterator[Row]:
    def refuse(number: int, problem: str) -> DataError:
        return DataError(f"{path}:{number}: {problem}")

    for number, fields in json_lines(path, refuse, halves=False):
        yield Row(where=f"{path}:{number}", fields=fields)


def _read_parquet(path: Path) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise _missing("pyarrow", str(path)) from error
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # for example a lone surrogate
        raise DataError(f"{path}: not a readable Parquet file: {error}") from error
    for number, fields in enumerate(rows, start=1):
        yield Row(where=f"{path}, row {number}", fields=fields)


def no_rows(rows: FileRows | HubRows, example: Mapping[str, Any]) -> DataError:
    return DataError(f"there are no rows in {rows}; expected a JSON object a line: {json.dumps(example)}")


def _missing(library: str, what: str) -> MissingExtra:
    return MissingExtra(f"reading {what} needs {library}; install it with: " + install_command("data"))
