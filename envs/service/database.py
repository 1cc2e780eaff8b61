"""A database whose records many episodes share. An episode copies a record before it edits the record.

Invariant: the records read from the files are never changed, and snapshots contain only the edited copies.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from turntree.envs.data.json_files import half_in, read_json
from turntree.envs.data.rows import find_rows
from turntree.envs.errors import DataError

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tables:
    """The records as read from the files."""

    folder: Path
    domain: str  #: for example ``retail``
    records: Mapping[str, Mapping[str, Record]]  #: table -> key -> record

    def __reduce__(self) -> tuple[Any, ...]:
        return read_tables, (self.folder, self.domain, tuple(self.records))  # unpickling reads the files again


def read_tables(folder: Path, domain: str, tables: Sequence[str]) -> Tables:
    """Read tables; an unchanged folder is read only once.

    Args:
        folder: Contains, per table, ``db_DOMAIN_TABLE.jsonl`` with rows of ``key`` and ``value``, or ``TABLE.json``
            with one object, as published by tau-bench (possibly in a folder below ``data/``).
        domain: For example ``retail``.

    Raises:
        DataError: If a table is missing or malformed; the message names file and line.
    """
    files = tuple(_table_file(folder, domain, table) for table in tables)
    # Times of modification are part of the cache's key, so that a changed file is read again.
    modified = tuple(file.stat().st_mtime_ns for file in files)
    return _read(folder, domain, tuple(tables), files, modified)


@lru_cache(maxsize=8)
def _read(
    folder: Path, domain: str, tables: tuple[str, ...], files: tuple[Path, ...], modified: tuple[int, ...]
) -> Tables:
    records = {table: _records(file) for table, file in zip(tables, files, strict=True)}
    return Tables(folder=folder, domain=domain, records=records)


def _table_file(folder: Path, domain: str, table: str) -> Path:
    names = (f"db_{domain}_{table}.jsonl", f"{table}.json", f"data/{table}.json")
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(f"the folder {folder} has no table {table!r}: expected one of {', '.join(names)}")


def _records(file: Path) -> dict[str, Record]:
    if file.suffix == ".json":
        try:
            content = read_json(file)
        except ValueError as error:
            raise DataError(f"{file}: expected one JSON object, got bad JSON ({error})") from error
        items = content.items() if isinstance(content, dict) else ()
        pairs = {f"{file}, key {key!r}": (key, value) for key, value in items}
    else:
        pairs = {row.where: (row.text("key"), row.fields.get("value")) for row in find_rows(file, split="").read()}
    records = {}
    for where, (key, value) in pairs.items():
        if not isinstance(value, dict):
            raise DataError(f"{where}: the field 'value' must be an object, got {value!r:.80}")
        if problem := half_in([key, value]):
            raise DataError(f"{where}: {problem}")
        records[key] = value
    if not records:
        raise DataError(f"{file}: expected records by key, got none")
    return records


class Database:
    """The records of one episode."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._edited: dict[str, dict[str, Record]] = {}

    def read(self, table: str, key: str) -> Record | None:
        """Return a record, which the caller must not change; ``None`` if there is no such record."""
        edited = self._edited.get(table, {}).get(key)
        return edited if edited is not None else self._tables.records[table].get(key)

    def edit(self, table: str, key: str) -> Record:
        """Return the episode's own copy of a record, which the caller may change.

        Raises:
            KeyError: If there is no such record.
        """
        edited = self._edited.setdefault(table, {})
        if key not in edited:
            edited[key] = copy.deepcopy(self._tables.records[table][key])
        return edited[key]

    def add(self, table: str, key: str, record: Record) -> Record:
        """Add a record under an unused key, or replace one that was added in this episode."""
        self._edited.setdefault(table, {})[key] = record
        return record

    def rows(self, table: str) -> Iterator[tuple[str, Record]]:
        """Iterate over keys and records in the order of the file; records added in this episode come last."""
        edited, original = self._edited.get(table, {}), self._tables.records[table]
        for key, record in original.items():
            yield key, edited.get(key, record)
        for key in (key for key in edited if key not in original):
            yield key, edited[key]

    def changes(self) -> dict[str, dict[str, Record]]:
        """Return the records that differ from the files: table -> key -> record."""
        different = {
            table: {key: record for key, record in edited.items() if record != self._tables.records[table].get(key)}
            for table, edited in self._edited.items()
        }
        return {table: records for table, records in different.items() if records}

    def fresh(self) -> Database:
        """Return a database with the original records."""
        return Database(self._tables)
