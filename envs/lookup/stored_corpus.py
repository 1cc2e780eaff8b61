"""Keep a corpus on disk: documents and their index, built once in the cache folder and memory-mapped.

A corpus's folder is complete or does not exist: it is written under another name and then renamed. Its files:

- ``documents.jsonl``: one document per line; ``ends.npy``: byte offset of the end of each line
- ``keys.npy``: sorted hashes of the document ids; ``numbers.npy``: for each hash, the number of its document
- the index as bm25s saves it
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import mmap
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from turntree.envs.data.rows import cache_folder
from turntree.envs.errors import DataError
from turntree.envs.lookup.corpus import Corpus, Document, index_of, library

_FORMAT = 1  #: version in every folder's name; increase it when the files or the function `words` change


class StoredCorpus(Corpus):
    """Open a corpus that ``stored`` has written. Documents and index are memory-mapped, not loaded.

    Raises:
        MissingExtra: If bm25s is not installed.
        DataError: If a file is missing or damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        bm25s = library()
        try:
            self._ends, self._keys, self._numbers = (
                np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("ends", "keys", "numbers")
            )
            with (folder / "documents.jsonl").open("rb") as file:
                self._lines = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._index = bm25s.BM25.load(folder, mmap=True, show_progress=False)
        except (OSError, ValueError) as error:
            raise DataError(f"the index of the corpus in {folder} is damaged ({error}); delete that folder") from error

    def get(self, id: str) -> Document | None:
        key = _key(id)
        for position in range(int(np.searchsorted(self._keys, key)), len(self._keys)):
            if self._keys[position] != key:
                return None
            document = self._at(int(self._numbers[position]))
            if document.id == id:
                return document
        return None

    def _at(self, number: int) -> Document:
        begin = int(self._ends[number - 1]) if number else 0
        return Document(**json.loads(self._lines[begin : int(self._ends[number])]))

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredCorpus, (self.folder,)


def stored(source: str, documents: Iterable[Document]) -> StoredCorpus:
    """Return the corpus of a source from the cache folder; build it there first if needed.

    If several processes need the corpus at once, one process builds it and the other processes wait.

    Args:
        source: Text that identifies the corpus and the current state of its files.
        documents: Read only if the corpus must be built.

    Raises:
        MissingExtra: If bm25s is not installed.
        DataError: If there are no documents, two have the same id, or the cache folder cannot be written.
    """
    name = hashlib.sha256(f"{_FORMAT}/{library().__version__}/{source}".encode()).hexdigest()[:24]
    folder = cache_folder() / "corpora" / name
    if not folder.is_dir():
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with folder.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not folder.is_dir():  # who held the lock may have built it
                    _build(folder, documents)
        except OSError as error:
            raise DataError(
                f"cannot write the index of a corpus to {folder}: {error.strerror}; TURNTREE_CACHE names another folder"
            ) from error
    return StoredCorpus(folder)


def _build(folder: Path, documents: Iterable[Document]) -> None:
    made = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        keys: list[int] = []
        ends: list[int] = []
        with (made / "documents.jsonl").open("wb") as file:

            def written() -> Iterator[Document]:
                for document in documents:
                    file.write(json.dumps(asdict(document), ensure_ascii=False).encode() + b"\n")
                    ends.append(file.tell())
                    keys.append(_key(document.id))
                    yield document

            index = index_of(written())
        order = np.argsort(np.array(keys, np.uint64), kind="stable")
        np.save(made / "ends.npy", np.array(ends, np.int64))
        np.save(made / "keys.npy", np.array(keys, np.uint64)[order])
        np.save(made / "numbers.npy", order)
        index.save(made, show_progress=False)
        _require_different_ids(StoredCorpus(made))
        made.replace(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _require_different_ids(corpus: StoredCorpus) -> None:
    keys, numbers = corpus._keys, corpus._numbers
    for position in np.flatnonzero(keys[1:] == keys[:-1]):
        one, other = (corpus._at(int(numbers[at])).id for at in (position, position + 1))
        if one == other:
            raise DataError(f"expected documents with different ids, got {one!r} twice")


def _key(id: str) -> int:
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest())
