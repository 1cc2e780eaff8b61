"""Search texts with a BM25 index (Robertson and Zaragoza 2009), by the library bm25s."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.envs.errors import DataError, MissingExtra, install_command

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    id: str  #: passed to the tool that fetches the document
    title: str
    text: str


class Corpus:
    """Hold searchable documents in memory; ``StoredCorpus`` keeps them on disk.

    If scores are equal, the earlier document in ``documents`` comes first.

    Raises:
        MissingExtra: If bm25s is not installed.
        DataError: If there are no documents, or two documents have the same id.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        self._by_id = {document.id: document for document in documents}
        if len(self._by_id) < len(documents):
            raise DataError(f"expected documents with different ids, got {len(documents)} with {len(self._by_id)} ids")
        self._index = index_of(documents)

    def search(self, query: str, count: int) -> list[Document]:
        """Return the best matching documents, best first; documents without a word of the query are left out."""
        asked = words(query)
        if not asked:
            return []
        return [self._at(number) for number in best(self._index.get_scores(asked), count)]

    def get(self, id: str) -> Document | None:
        return self._by_id.get(id)

    def _at(self, number: int) -> Document:
        return self._documents[number]


def index_of(documents: Iterable[Document]) -> Any:
    index = library().BM25()
    numbers: dict[str, int] = {}
    texts = [[numbers.setdefault(word, len(numbers)) for word in words(f"{d.title} {d.text}")] for d in documents]
    if not texts:
        raise DataError("expected documents to search in, got none")
    index.index((texts, numbers), show_progress=False)
    return index


def library() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise MissingExtra("searching needs bm25s; install it with: " + install_command("search")) from error
    # bm25s sets the level of its logger to DEBUG, so the caller's log handlers would print its debug messages.
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    return bm25s


def best(scores: NDArray[np.float32], count: int) -> list[int]:
    """Return the indices of the greatest scores above 0, greatest first; equal scores keep their order.

    Example:
        >>> best(np.array([0, 2, 3, 2, 2], np.float32), 2)
        [2, 1]
    """
    found = np.flatnonzero(scores > 0)
    if len(found) > count:
        least = np.partition(scores[found], -count)[-count]
        found = found[scores[found] >= least]
    order = np.lexsort((found, -scores[found]))[:count]
    return [int(number) for number in found[order]]


def words(text: str) -> list[str]:
    """Return the words of a text in lower case; words of more than three letters lose a final s.

    >>> words("The Towers of Ardol")
    ['the', 'tower', 'of', 'ardol']
    """
    found: Iterable[str] = _WORD.findall(text.casefold())
    return [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in found]
