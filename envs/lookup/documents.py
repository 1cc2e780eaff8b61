from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from turntree.envs.data.json_files import read_text
from turntree.envs.data.rows import FileRows, HubRows, Row, find_rows
from turntree.envs.errors import DataError
from turntree.envs.lookup.corpus import Corpus, Document
from turntree.envs.lookup.stored_corpus import stored

_IDS = ("id", "_id", "docid")
_TEXTS = ("text", "contents")
_SUFFIXES = (".txt", ".md")


@dataclass(frozen=True, slots=True, kw_only=True)
class _FolderRows:
    # An instance equals another only if no file has changed between them, so it can be the key of a cache.

    folder: Path
    state: str  #: digest of the files' names, sizes and times

    def read(self) -> Iterator[Row]:
        for path in _texts(self.folder):
            try:
                text = read_text(path)
            except (OSError, UnicodeDecodeError) as error:
                raise DataError(f"{path}: expected a text in UTF-8, got something else ({error})") from error
            fields = {"id": str(path.relative_to(self.folder)), "title": path.stem, "text": text}
            yield Row(where=str(path), fields=fields)


def read_corpus(data: str | Path, *, split: str = "corpus", subset: str | None = None) -> Corpus:
    """Read a corpus from a file, a folder or a data set on the hub; the index is built once, in the cache folder.

    Args:
        data: A ``.jsonl`` or ``.parquet`` file or a data set id. Rows have ``text`` (or ``contents``) and may have
            ``title`` and ``id`` (or ``_id``, ``docid``; otherwise rows are numbered from 0). Or a folder that holds
            such a file named ``split``, or text files (``.txt``, ``.md``, at any depth) with their paths as ids.
        split: Split of the data set, or name of the file in the folder.
        subset: Configuration name of a data set.

    Raises:
        DataError: If there is nothing to read or a row is malformed; the message names file and line.
        MissingExtra: If a required library is not installed.
    """
    folder = Path(data).expanduser()
    if folder.is_dir() and not any((folder / f"{split}{suffix}").is_file() for suffix in (".jsonl", ".parquet")):
        files = _texts(folder)
        if not files:
            raise DataError(
                f"expected {split}.jsonl, {split}.parquet or texts (.txt, .md) in {folder}, got none of them"
            )
        states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        state = hashlib.sha256(repr(states).encode()).hexdigest()
        return _open(_FolderRows(folder=folder.resolve(), state=state))
    rows = find_rows(data, split=split, subset=subset)
    return _open(replace(rows, path=rows.path.resolve()) if isinstance(rows, FileRows) else rows)


@lru_cache(maxsize=4)
def _open(rows: FileRows | HubRows | _FolderRows) -> Corpus:
    return stored(repr(rows), _documents(rows))


def _documents(rows: FileRows | HubRows | _FolderRows) -> Iterator[Document]:
    for number, row in enumerate(rows.read()):
        yield _document(row, number)


def _document(row: Row, number: int) -> Document:
    given = next((row.fields[name] for name in _IDS if row.fields.get(name) not in (None, "")), number)
    if not isinstance(given, str | int):
        raise DataError(f"{row.where}: an id must be a text or a whole number, got {given!r}")
    title = row.fields.get("title") or ""
    if not isinstance(title, str):
        raise DataError(f"{row.where}: the field 'title' must be a text, got {title!r}")
    text = row.text(next((name for name in _TEXTS if name in row.fields), "text"))
    return Document(id=str(given), title=title, text=text)


def _texts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
