"""Answer questions by searching a local corpus."""

from __future__ import annotations

import random
import re
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from turntree.envs.data.rows import FileRows, HubRows, find_rows
from turntree.envs.env import Env
from turntree.envs.errors import DataError, ToolError
from turntree.envs.limits import Limits
from turntree.envs.lookup.corpus import Corpus, read_corpus
from turntree.envs.lookup.island import island, question
from turntree.envs.message import Message, ToolCall
from turntree.envs.reply import Reply
from turntree.envs.task import Task
from turntree.envs.tools.tool import tool
from turntree.rewards import extract

_SHOWN = 160
_NOISE = re.compile(r"\b(a|an|the)\b|[^\w\s]")


class Search(Env):
    r"""Find answers in texts; the answer is in the last ``\boxed{}`` of a turn that calls no tool.

    Without files the corpus is a fictional island with unlimited questions. Reward 1 if the answer is right
    up to case, articles and punctuation, else 0.
    """

    forkable = True
    static_attributes: ClassVar[frozenset[str]] = Env.static_attributes | {"_corpus", "_tasks", "num_tasks", "hits"}

    def __init__(
        self,
        *,
        corpus: str | Path | None = None,
        data: str | Path | None = None,
        split: str = "train",
        hits: int = 3,
        limits: Limits = Limits(max_turns=12),  # noqa: B008 - frozen
        **kwargs: Any,
    ) -> None:
        """Read the corpus and the questions.

        Args:
            corpus: Rows with ``id``, ``title`` and ``text``; ``None`` takes the island.
            data: Rows with ``question`` and ``answer``, required with a custom corpus.
            split: Split of ``data``; part of every task's id and seed.
            hits: Most texts returned by a search.
            limits: Bounds of an episode.
            **kwargs: Arguments of ``Env``.

        Raises:
            DataError: If a file is missing or a row malformed, or only one of ``corpus`` and ``data`` is given.
            MissingExtra: If bm25s is not installed.
        """
        super().__init__(limits=limits, **kwargs)
        if (corpus is None) != (data is None):
            raise DataError("corpus and data belong together: give both, or neither for the made-up island")
        if hits < 1:
            raise ValueError(f"hits must be at least 1, got {hits}")
        self._corpus: Corpus = island() if corpus is None else read_corpus(corpus)
        self._tasks = () if data is None else _read_tasks(find_rows(data, split=split), split)
        self.num_tasks = len(self._tasks) or None
        self.hits = hits
        self.split = split

    def default_system_prompt(self) -> str:
        """Explain the tools and the form of the answer."""
        call = self.parser.format_call(ToolCall(name="search", arguments={"query": "bridge of Ardol"}))
        return (
            "Answer the question from the texts that you find. Search, and read a text by its id; call tools like "
            f"this and wait for the result:\n{call}\n"
            r"End with the answer alone, a few words or a number, in \boxed{}."
        )

    def task(self, index: int) -> Task:
        """The question with this index."""
        if self._tasks:
            return self._tasks[index]
        asked, answer, texts = question(random.Random(f"turntree/search/{self.split}/{index}"))
        return Task(
            id=f"search/island/{self.split}/{index}",
            prompt=asked,
            answer=answer,
            data_source="search",
            metadata={"texts": texts},
        )

    def reply(self, message: Message) -> Reply:
        """Compare the answer and end the episode."""
        said = extract(message.content).answer
        right = float(said is not None and _plain(said) == _plain(self.current_task.answer))
        return Reply(reward=right, done=True, rewards={"correct": right})

    @tool(deterministic=True)
    def search(self, query: str) -> str:
        """Find the texts that fit a query best.

        Args:
            query: A few words
        """
        found = self._corpus.search(query, self.hits)
        lines = [f"[{document.id}] {document.title}: {_short(document.text)}" for document in found]
        return "\n".join(lines) or "Nothing was found."

    @tool(deterministic=True)
    def read(self, id: str) -> str:
        """Read a whole text.

        Args:
            id: Its id, as search shows it in brackets
        """
        document = self._corpus.get(id)
        if document is None:
            raise ToolError(f"there is no text {id!r}; search shows ids in brackets")
        return f"{document.title}\n{document.text}"


@lru_cache(maxsize=4)
def _read_tasks(rows: FileRows | HubRows, split: str) -> tuple[Task, ...]:
    tasks = tuple(
        Task(
            id=row.text("id") if row.fields.get("id") else f"search/{split}/{number}",
            prompt=row.text("question"),
            answer=row.text("answer"),
            data_source="search",
        )
        for number, row in enumerate(rows.read())
    )
    if not tasks:
        raise DataError(f"expected rows with question and answer, got none in {rows}")
    return tasks


def _plain(text: str) -> str:
    return " ".join(_NOISE.sub(" ", text.casefold().removeprefix(r"\text{")).split())


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
