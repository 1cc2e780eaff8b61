"""Texts with a BM25 index over them (Robertson and Zaragoza 2009), by the library bm25s."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from turntree.envs.data.rows import FileRows, HubRows, find_rows
from turntree.envs.errors import DataError, MissingExtra

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text."""

    id: str
    """Identifier used to fetch it."""
    title: str
    """Its title."""
    text: str
    """The whole text."""


class Corpus:
    """Documents that can be searched.

    Args:
        documents: In the order that breaks ties of scores; their ids must differ.

    Raises:
        MissingExtra: If bm25s is not installed.
        DataError: If there are no documents, or two have one id.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        try:
            import bm25s
        except ImportError as error:
            raise MissingExtra('searching needs bm25s; install it with: pip install "turntree[search]"') from error
        self._documents = {document.id: document for document in documents}
        if not documents or len(self._documents) < len(documents):
            raise DataError(
                f"expected documents with different ids, got {len(documents)} with {len(self._documents)} ids"
            )
        self._ids = list(self._documents)
        self._index: Any = bm25s.BM25()
        self._index.index([words(f"{d.title} {d.text}") for d in documents], show_progress=False)

    def search(self, query: str, count: int) -> list[Document]:
        """The best matching documents, best first; those without a word of the query are left out."""
        asked = words(query)
        if not asked:
            return []
        scores = self._index.get_scores(asked)
        best = sorted((-score, number) for number, score in enumerate(scores.tolist()) if score > 0)
        return [self._documents[self._ids[number]] for _, number in best[:count]]

    def get(self, id: str) -> Document | None:
        """The document with this id, or ``None``."""
        return self._documents.get(id)


def words(text: str) -> list[str]:
    """The words of a text in lower case, without the final s of longer ones.

    >>> words("The Towers of Ardol")
    ['the', 'tower', 'of', 'ardol']
    """
    found: Iterable[str] = _WORD.findall(text.casefold())
    return [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in found]


def read_corpus(data: str | Path) -> Corpus:
    """Read documents with ``id``, ``title`` (may be missing) and ``text``; an unchanged file is read once.

    Raises:
        DataError: If the file is missing or a row malformed; the message names file and line.
    """
    return _read(find_rows(data, split="corpus"))


@lru_cache(maxsize=4)
def _read(rows: FileRows | HubRows) -> Corpus:
    return Corpus(
        [
            Document(
                id=row.text("id"),
                title=row.text("title") if row.fields.get("title") else "",
                text=row.text("text"),
            )
            for row in rows.read()
        ]
    )
