import json
import sys
from pathlib import Path

import pytest
from playing import play, use, write_rows

from turntree.envs import DataError, MissingExtra, make
from turntree.envs.lookup.corpus import Corpus, Document
from turntree.envs.lookup.documents import read_corpus
from turntree.envs.lookup.key_value import KeyValue
from turntree.envs.lookup.search import Search, island, towns


def test_doing_nothing_or_something_besides_loses() -> None:
    env = make("turntree/KeyValue-v0")
    env.reset(options={"index": 0})
    for key, value in env.current_task.metadata["expected"].items():
        use(env, "set", key=key, value=value)
    for key in set(env.current_task.metadata["store"]) - set(env.current_task.metadata["expected"]):
        use(env, "delete", key=key)
    use(env, "set", key="extra", value=1)
    assert env.step("Done.")[1:3] == (0.0, True)


def test_the_operations_in_words_are_those_that_are_expected() -> None:
    env = KeyValue(max_operations=8)
    for index in range(60):
        task = env.task(index)
        store = dict(task.metadata["store"])
        for line in task.prompt.splitlines()[1:]:
            words = line.rstrip(".").split()[1:]
            if words[0] == "Copy":
                store[words[-1]] = store[words[4]]
            elif words[0] == "Add":
                store[words[-1]] += store[words[4]]
            elif words[0] == "Swap":
                store[words[4]], store[words[6]] = store[words[6]], store[words[4]]
            else:
                del store[words[-1]]
        assert store == task.metadata["expected"]
        assert len(task.prompt.splitlines()) - 1 == task.metadata["operations"]


def test_the_numbers_have_to_be_looked_up_and_a_missing_key_is_named_with_those_there_are() -> None:
    env = make("turntree/KeyValue-v0")
    env.reset(options={"index": 0})
    for name in ("get", "delete"):
        said = use(env, name, key="nothing")
        assert "there is no key 'nothing'" in said
        assert sorted(env.current_task.metadata["store"])[0] in said
    store = env.current_task.metadata["store"]
    assert use(env, "list_keys") == json.dumps(sorted(store))
    assert [use(env, "get", key=key) for key in store] == [str(value) for value in store.values()]
    env = make("turntree/KeyValue-v0")
    opening, _ = env.reset(options={"index": 3})
    numbers = set(map(str, env.current_task.metadata["store"].values()))
    assert not numbers & set(opening.replace(".", " ").replace(",", " ").split())


TEXTS = [
    {"id": "a", "title": "Cats", "text": "A cat is a small animal that purrs."},
    {"id": "b", "title": "Dogs", "text": "A dog is a friend. Dogs bark."},
    {"id": "c", "text": "Birds can fly, and the penguin cannot."},
]
QUESTIONS = [{"question": "Which animal purrs?", "answer": "The cat"}, {"question": "Who barks?", "answer": "dog"}]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv("TURNTREE_CACHE", str(tmp_path / "cache"))
    written = {"corpus": TEXTS, "data": QUESTIONS}
    return {name: write_rows(tmp_path / f"{name}.jsonl", rows) for name, rows in written.items()}


def test_an_answer_that_was_looked_up_wins_and_another_loses(files: dict[str, Path]) -> None:
    env = make("turntree/Search-v0", **files, tool_format="hermes")
    assert env.num_tasks == 2
    env.reset(options={"index": 0})
    assert use(env, "search", query="purring cat").startswith("[a] Cats: A cat is")
    assert use(env, "read", id="a") == "Cats\nA cat is a small animal that purrs."
    assert env.step(r"It is \boxed{\text{a cat}}.")[1:4] == (1.0, True, False)
    assert play(env, [r"\boxed{dog}"], 0)[0][1:4] == (0.0, True, False)
    assert play(env, ["the cat"], 0)[0][1:3] == (0.0, True)


def test_the_answer_stands_in_a_box_and_keeps_its_sign() -> None:
    env = make("turntree/Search-v0")
    number = next(n for n in range(99) if env.task(n).answer.isdigit())
    year = env.task(number).answer
    said = (f"\\boxed{{{year}}}", f"\\boxed{{-{year}}}", f"It may be salt or {year} or wool.", f"\\boxed{{In {year}}}")
    assert [play(env, [text], number)[0][1] for text in said] == [1.0, 0.0, 0.0, 0.0]
    assert play(env, [f"\\boxed{{({year}).}}"], number)[0][1] == 1.0


def test_questions_about_the_island_can_be_answered_from_its_texts_by_two_where_two_are_needed() -> None:
    env = make("turntree/Search-v0")
    seen = set()
    for index in range(60):
        env.reset(options={"index": index})
        task = env.current_task
        seen.add(task.metadata["texts"])
        first = env.search(task.prompt)
        assert "[" in first
        if task.metadata["texts"] == 1:
            assert task.answer in env.read(first[1 : first.index("]")]), task
        assert env.step(rf"\boxed{{{task.answer}}}")[1] == 1.0
        assert play(env, [r"\boxed{Atlantis}"], index)[0][1:4] == (0.0, True, False)
    assert seen == {1, 2}
    for town in towns():
        (person, *_) = island().search(f"{town.builder} born", 1)
        assert town.birthplace in person.text
        (hit, *_) = island().search(f"town {town.birthplace} live", 1)
        assert hit.title == town.birthplace


def test_the_best_text_comes_first_and_strangers_are_left_out(files: dict[str, Path]) -> None:
    corpus = read_corpus(files["corpus"])
    assert corpus.search("a dog or a cat that purrs", 5)[0].id == "a"
    assert [document.id for document in corpus.search("flying penguin", 5)] == ["c"]
    assert corpus.search("volcano", 5) == []
    assert corpus.search("?!", 5) == []
    assert corpus.get("c") == Document(id="c", title="", text=TEXTS[2]["text"])
    assert corpus.get("x") is None
    env = make("turntree/Search-v0", **files)
    env.reset(seed=0)
    assert use(env, "search", query="volcano") == "Nothing was found."
    assert "there is no text '../x'" in use(env, "read", id="../x")


def test_rows_that_do_not_fit_are_named_and_so_is_the_extra_without_its_library(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="corpus and data belong together"):
        Search(corpus=files["corpus"])
    bad = write_rows(tmp_path / "bad.jsonl", [TEXTS[0], {"id": "z", "text": ""}])
    with pytest.raises(DataError, match=r"bad.jsonl:2: the field 'text'"):
        Search(corpus=bad, data=files["data"])
    with pytest.raises(DataError, match="got 2 with 1 ids"):
        Corpus([Document(id="a", title="", text="a")] * 2)
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(MissingExtra, match=r"pip install .*\[search\]"):
        Corpus([Document(id="a", title="", text="a")])
