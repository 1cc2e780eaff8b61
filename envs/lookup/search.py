from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, ClassVar

from turntree.envs.data.rows import FileRows, HubRows, Row, find_rows, no_rows
from turntree.envs.env import Env
from turntree.envs.errors import DataError, ToolError
from turntree.envs.limits import Limits
from turntree.envs.lookup.corpus import Corpus, Document
from turntree.envs.lookup.documents import read_corpus
from turntree.envs.message import Message, Reply, ToolCall
from turntree.envs.task import Task
from turntree.envs.tools.tool import tool
from turntree.rewards import extract

_SEED = "turntree/island"
_TOWNS = 24
_STARTS = ("Ar", "Bel", "Cor", "Dun", "El", "Far", "Gal", "Hol", "Ist", "Jor", "Kel", "Lom")
_ENDS = ("dol", "mar", "ven", "tis", "wick", "gard", "ra", "by")
_FIRST_NAMES = ("Mira", "Tomas", "Ilse", "Bruno", "Nadia", "Oskar", "Petra", "Rufus", "Sylva", "Ulrich", "Vera", "Wim")
_LAST_NAMES = ("Tesk", "Arvo", "Blom", "Crane", "Dorn", "Esk", "Falk", "Grau")
_BUILDINGS = ("lighthouse", "town hall", "bridge", "theater", "library", "windmill")
_TRADES = ("shipbuilding", "salt", "wool", "glass", "honey", "copper", "paper", "cider")


@dataclass(frozen=True, slots=True, kw_only=True)
class Town:
    name: str
    building: str  #: best known building
    builder: str
    year: int  #: year in which the building was built
    birthplace: str  #: birthplace of the builder
    trade: str


@cache
def towns() -> tuple[Town, ...]:
    rng = random.Random(_SEED)
    names = rng.sample([start + end for start in _STARTS for end in _ENDS], _TOWNS)
    builders = rng.sample([f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES], _TOWNS)
    return tuple(
        Town(
            name=name,
            building=rng.choice(_BUILDINGS),
            builder=builder,
            year=rng.randint(1650, 1930),
            birthplace=rng.choice([other for other in names if other != name]),
            trade=rng.choice(_TRADES),
        )
        for name, builder in zip(names, builders, strict=True)
    )


@cache
def island() -> Corpus:
    documents = []
    for number, town in enumerate(towns()):
        about = f"{town.name} is a town on the island. It lives on {town.trade}. "
        built = f"Its {town.building} was built in {town.year} by {town.builder}."
        documents.append(Document(id=f"town-{number}", title=town.name, text=about + built))
        life = f"{town.builder} was a master builder, born in {town.birthplace}, and worked in {town.name}."
        documents.append(Document(id=f"person-{number}", title=town.builder, text=life))
    return Corpus(documents)


def question(rng: random.Random) -> tuple[str, str, int]:
    """Return a question, its answer, and the number of texts needed to answer it."""
    known = {town.name: town for town in towns()}
    town = rng.choice(list(known.values()))
    birthplace = known[town.birthplace]
    return rng.choice(
        [
            (f"In which year was the {town.building} of {town.name} built?", str(town.year), 1),
            (f"What does the town of {town.name} live on?", town.trade, 1),
            (f"Where was the builder of the {town.building} of {town.name} born?", town.birthplace, 2),
            (f"What does the town live on where {town.builder} was born?", birthplace.trade, 2),
        ]
    )


_SHOWN = 160
_NOISE = re.compile(r"\b(a|an|the)\b|(?!(?<!\w)-\d)[^\w\s]")  # articles, and punctuation except a minus sign


class Search(Env):
    r"""Find answers in texts; the answer is in the last ``\boxed{}`` of a turn that calls no tool.

    Without files, the texts describe a generated fictional island, with unlimited questions. The reward is 1 if the
    answer is right up to case, articles and punctuation, else 0.
    """

    forkable = True
    static_attributes: ClassVar[frozenset[str]] = Env.static_attributes | {"_corpus", "_tasks", "num_tasks", "hits"}
    default_limits = Limits(max_turns=12)
    example_call = ToolCall(name="search", arguments={"query": "bridge of Ardol"})

    def __init__(
        self,
        *,
        corpus: str | Path | None = None,
        corpus_split: str = "corpus",
        corpus_subset: str | None = None,
        data: str | Path | None = None,
        split: str = "train",
        subset: str | None = None,
        hits: int = 3,
        **kwargs: Any,
    ) -> None:
        """Read the corpus and the questions.

        Args:
            corpus: A file or data set of rows with ``id``, ``title`` and ``text``, or a folder of texts, see
                ``read_corpus``; indexed once, in the cache folder. ``None`` takes the texts of the island.
            corpus_split: Split of ``corpus``, if ``corpus`` is a data set.
            corpus_subset: Configuration name of ``corpus``, if ``corpus`` is a data set.
            data: Rows with ``question`` and ``answer`` (or ``golden_answers``, any of which is right). Required if
                ``corpus`` is given.
            split: Split of ``data``; part of every task's id and seed.
            subset: Configuration name of ``data``, if ``data`` is a data set.
            hits: Maximum number of texts that a search returns.
            **kwargs: Arguments of ``Env``.

        Raises:
            DataError: If a file is missing or a row malformed, or only one of ``corpus`` and ``data`` is given.
            MissingExtra: If bm25s is not installed.
        """
        super().__init__(**kwargs)
        if (corpus is None) != (data is None):
            raise DataError("corpus and data belong together: give both, or neither for the made-up island")
        if hits < 1:
            raise ValueError(f"hits must be at least 1, got {hits}")
        self._corpus: Corpus = (
            island() if corpus is None else read_corpus(corpus, split=corpus_split, subset=corpus_subset)
        )
        self._tasks = () if data is None else _read_tasks(find_rows(data, split=split, subset=subset), split)
        self.num_tasks = len(self._tasks) or None
        self.hits = hits
        self.split = split

    def default_system_prompt(self) -> str:
        return (
            "Answer the question from the texts that you find: search, and read a text by its id. "
            r"End with the answer alone, a few words or a number, in \boxed{}."
        )

    def task(self, index: int) -> Task:
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
        boxed = extract(message.content).found
        task = self.current_task
        answers = task.metadata.get("answers", [task.answer])
        right = float(boxed is not None and not boxed.prose and _plain(boxed.text) in map(_plain, answers))
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
            answer=answers[0],
            data_source="search",
            metadata={"answers": answers},
        )
        for number, row in enumerate(rows.read())
        for answers in [_answers(row)]
    )
    if not tasks:
        raise no_rows(rows, {"question": "When did it open?", "answer": "1883"})
    return tasks


def _answers(row: Row) -> list[str]:
    field = "golden_answers" if "golden_answers" in row.fields else "answer"
    given = row.fields.get(field)
    answers = [row.text(field)] if given is None or isinstance(given, str) else list(given)
    if not answers or not all(isinstance(answer, str) and _plain(answer) for answer in answers):
        raise DataError(f"{row.where}: the field {field!r} must be a text or some, each with a word, got {given!r}")
    return answers


def _plain(text: str) -> str:
    return " ".join(_NOISE.sub(" ", text.casefold().removeprefix(r"\text{")).split())


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
