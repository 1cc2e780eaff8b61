"""A corpus of the user's is read from what users have, indexed once, and found as in memory."""

import pickle
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from playing import play, write_rows

from turntree.envs import DataError, make
from turntree.envs.lookup import documents
from turntree.envs.lookup.corpus import Corpus, Document, best
from turntree.envs.lookup.documents import read_corpus
from turntree.envs.lookup.stored_corpus import StoredCorpus, stored

WORDS = [f"w{number}" for number in range(60)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TURNTREE_CACHE", str(tmp_path / "cache"))
    documents._open.cache_clear()
    return tmp_path / "cache" / "corpora"


def texts(count: int, seed: int = 0) -> list[Document]:
    rng = random.Random(seed)
    return [Document(id=f"d{n}", title=f"T{n}", text=" ".join(rng.choices(WORDS, k=8))) for n in range(count)]


def test_what_is_on_disk_is_found_as_in_memory_and_pickled_as_its_folder(caplog: pytest.LogCaptureFixture) -> None:
    known = texts(300)
    memory, disk = Corpus(known), stored("a", known)
    for query in (*WORDS, "w1 w2 w3", "w7 nothing", "nothing", ""):
        assert disk.search(query, 7) == memory.search(query, 7)
    assert [disk.get(document.id) for document in known] == known
    assert disk.get("d300") is None
    assert disk.search("w1", 3) != disk.search("w2", 3)
    corpus = stored("p", texts(500))
    pickled = pickle.dumps(corpus)
    assert len(pickled) < 1000
    assert pickle.loads(pickled).get("d499") == corpus.get("d499") is not None
    Corpus(texts(5))
    assert not caplog.records


@pytest.mark.parametrize("count", [1, 5, 99, 100, 400])
def test_the_best_are_those_of_a_full_sort(count: int) -> None:
    rng = np.random.default_rng(count)
    scores = rng.integers(0, 6, 300).astype(np.float32)  # many ties
    wanted = sorted((-score, number) for number, score in enumerate(scores.tolist()) if score > 0)
    assert best(scores, count) == [number for _, number in wanted[:count]]


def test_an_index_is_built_once_and_again_when_the_file_changes(tmp_path, monkeypatch) -> None:
    path = write_rows(tmp_path / "corpus.jsonl", [{"id": "a", "text": "a cat"}])
    first = read_corpus(path)
    documents._open.cache_clear()

    def no_reading(rows: Any) -> Iterator[Any]:
        raise AssertionError("the file was read again")

    with monkeypatch.context() as patched:
        patched.setattr("turntree.envs.data.rows.FileRows.read", no_reading)
        assert read_corpus(path).search("cat", 1) == first.search("cat", 1) != []
    write_rows(path, [{"id": "b", "text": "a cat and a dog"}])
    assert [document.id for document in read_corpus(path).search("cat", 1)] == ["b"]


def test_those_who_ask_at_once_wait_for_one_that_builds(cache: Path) -> None:
    built = []

    def slow() -> Iterator[Document]:
        built.append(1)
        yield from texts(2000)

    with ThreadPoolExecutor(4) as pool:
        found = [corpus.get("d7") for corpus in pool.map(lambda _: stored("s", slow()), range(4))]
    assert found == [texts(8)[7]] * 4
    assert len(built) == 1
    assert len([path for path in cache.iterdir() if path.is_dir()]) == 1


def test_what_cannot_be_built_leaves_nothing(cache: Path, tmp_path: Path) -> None:
    bad = write_rows(tmp_path / "bad.jsonl", [{"text": "good"}, {"text": " "}])
    empty = write_rows(tmp_path / "empty.jsonl", [])
    twice = write_rows(tmp_path / "twice.jsonl", [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}])
    for path, complaint in ((bad, r"bad.jsonl:2: the field 'text'"), (empty, "got none"), (twice, "got 'a' twice")):
        with pytest.raises(DataError, match=complaint):
            read_corpus(path)
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_damaged_index_says_what_to_delete_and_a_cache_that_cannot_be_written_is_named(cache, tmp_path, monkeypatch):
    folder = stored("d", texts(5)).folder
    (folder / "ends.npy").unlink()
    with pytest.raises(DataError, match=f"{folder} is damaged .*; delete that folder"):
        StoredCorpus(folder)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TURNTREE_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="TURNTREE_CACHE names another folder"):
        stored("x", texts(1))


def test_columns_go_by_published_names_and_a_folder_of_texts_is_a_corpus(tmp_path: Path) -> None:
    rows = [
        {"_id": 7, "contents": "seven seas"},
        {"docid": "x", "title": "Ships", "text": "a ship"},
        {"text": "a port"},
    ]
    corpus = read_corpus(write_rows(tmp_path / "corpus.jsonl", rows))
    found = [corpus.search(word, 1)[0] for word in ("seas", "ships", "port")]
    assert [(document.id, document.title) for document in found] == [("7", ""), ("x", "Ships"), ("2", "")]
    for row, complaint in (({"id": [1], "text": "a"}, "an id must be"), ({"title": 3, "text": "a"}, "'title' must be")):
        with pytest.raises(DataError, match=f"bad.jsonl:1: .*{complaint}"):
            read_corpus(write_rows(tmp_path / "bad.jsonl", [row]))
    folder = tmp_path / "texts"
    (folder / "deep").mkdir(parents=True)
    (folder / "cats.txt").write_text("Cats purr.")
    (folder / "deep" / "dogs.md").write_text("Dogs bark.")
    (folder / "image.png").write_bytes(b"\xff")
    corpus = read_corpus(folder)
    assert corpus.search("bark", 3) == [Document(id="deep/dogs.md", title="dogs", text="Dogs bark.")]
    (folder / "birds.txt").write_text("Birds sing.")
    assert [document.id for document in read_corpus(folder).search("sing", 3)] == ["birds.txt"]
    (folder / "latin.txt").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(DataError, match=r"latin\.txt: expected a text in UTF-8"):
        read_corpus(folder)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(DataError, match=r"expected corpus\.jsonl, .* or texts"):
        read_corpus(tmp_path / "nothing")


def test_a_corpus_may_come_from_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, subset: str | None, *, split: str) -> list[dict[str, str]]:
        asked.append((name, subset, split))
        return [{"_id": "1", "title": "", "text": "a whale"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    assert read_corpus("some/corpus", subset="corpus", split="train").search("whales", 1)[0].id == "1"
    assert asked == [("some/corpus", "corpus", "train")]


def test_any_of_several_answers_is_right_and_no_other(tmp_path: Path) -> None:
    corpus = write_rows(tmp_path / "corpus.jsonl", [{"text": "It opened in 1883."}])
    rows: list[dict[str, Any]] = [{"question": "When?", "golden_answers": ["1883", "the year 1883"]}]
    env = make("turntree/Search-v0", corpus=corpus, data=write_rows(tmp_path / "data.jsonl", rows))
    for said, reward in (("1883", 1.0), ("year 1883", 1.0), ("1884", 0.0), ("1883 year", 0.0)):
        assert play(env, [rf"\boxed{{{said}}}"], 0)[0][1] == reward
    for wrong in ([], ["a"], [1883], "the"):
        data = write_rows(tmp_path / "bad.jsonl", [{"question": "When?", "golden_answers": wrong}])
        with pytest.raises(DataError, match="the field 'golden_answers' must be a text or some"):
            make("turntree/Search-v0", corpus=corpus, data=data)
