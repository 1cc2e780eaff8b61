import os
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turntree.spec_tree import DamagedForest, DialogueState, DraftBatch, ForestConfig, SpecForest
from turntree.spec_tree.array_file import ArrayFile
from turntree.spec_tree.kernels.layout import WEIGHTS
from turntree.spec_tree.store.snapshot import digest

END = 9
DEFAULT = ForestConfig(end_tokens=frozenset({END}))
CONFIG = ForestConfig(end_tokens=frozenset({END}), rollouts_per_state=4)
SMALL = ForestConfig(end_tokens=frozenset({END}), rollouts_per_state=16, max_tokens=1024)


def state(index: int) -> DialogueState:
    return DialogueState.from_tokens([5, index], task=f"task {index % 3}", tools=f"{index % 2}", env="env")


def spoken(chance: random.Random, longest: int = 30) -> list[int]:
    return [chance.choice((1, 2, 3, 70_000)) for _ in range(chance.randint(1, longest))] + [END]


def filled(config: ForestConfig = CONFIG, *, turns: int = 40, seed: int = 0) -> SpecForest:
    chance = random.Random(seed)
    forest = SpecForest(config)
    for turn in range(turns):
        at, said = state(turn % 6), spoken(chance)
        if turn % 3:
            forest.insert(at, said)
            continue
        handles = forest.begin([at])
        for token in said:
            forest.draft(handles, max_nodes=8, max_depths=[8])
            forest.commit(handles, [[token]])
        forest.end(handles, keep=bool(turn % 2) or turn < 9)
    return forest


def drafts(forest: SpecForest, seed: int = 1) -> list[DraftBatch]:
    chance = random.Random(seed)
    batches = []
    handles = forest.begin([state(index) for index in range(8)])
    for _ in range(6):
        batches.append(forest.draft(handles, max_nodes=16, max_depths=[9] * 8))
        forest.commit(handles, [spoken(chance, 3)[:-1] for _ in handles])
    forest.end(handles, keep=False)
    return batches


def same(first: list[DraftBatch], second: list[DraftBatch]) -> bool:
    names = DraftBatch.__slots__
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) for a, b in zip(first, second, strict=True) for name in names
    )


def entries(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        arrays = ArrayFile(file)
        return {name: arrays.read(name).copy() for name in arrays.members}


def rewrite(path: Path, **changed: Any) -> None:
    arrays = {name: array for name, array in {**entries(path), **changed}.items() if array is not None}
    arrays.pop("digest", None)
    with open(path, "wb") as file:
        np.savez(file, **arrays, digest=digest(arrays))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "forest.npz"


def saved_and_loaded(forest: SpecForest, path: Path, config: ForestConfig | None = None) -> SpecForest:
    forest.save(path)
    return SpecForest.load(path, config)


def with_turns(count: int, config: ForestConfig = DEFAULT) -> SpecForest:
    forest, chance = SpecForest(config), random.Random(0)
    for turn in range(count):
        forest.insert(state(turn % 6), spoken(chance))
    return forest


def greatest() -> SpecForest:
    forest = SpecForest(DEFAULT)
    forest.insert(state(0), [2**31 - 1, 0, 2**16, 2**24])
    return forest


@pytest.mark.parametrize(
    "made",
    [lambda: with_turns(60), lambda: with_turns(0), lambda: filled(SMALL, turns=120), greatest],
    ids=["turns", "empty", "cold", "greatest"],
)
def test_a_loaded_forest_counts_and_shows_what_the_saved_one_does(path: Path, made: Callable[[], SpecForest]) -> None:
    forest = made()
    loaded = saved_and_loaded(forest, path)
    assert loaded.config == forest.config
    assert loaded.stats() == forest.stats()
    for index in range(8):
        assert loaded.tree(state(index)).to_dict() == forest.tree(state(index)).to_dict()
    if forest.config == SMALL:
        assert forest.stats().cold_tokens > 0
    loaded.insert(state(0), [1, 2, END])
    assert loaded.tree(state(0)).count == forest.tree(state(0)).count + 1


def test_a_loaded_forest_drafts_what_the_saved_one_does(path: Path) -> None:
    forest = with_turns(60)
    loaded, expected = saved_and_loaded(forest, path), drafts(forest)
    assert same(drafts(loaded), expected)
    assert sum(len(batch.tokens) for batch in expected) > 100
    assert not same(drafts(with_turns(60, CONFIG)), expected)


@pytest.mark.parametrize("config", [CONFIG, SMALL])
def test_saving_what_was_loaded_gives_the_same_file_and_the_same_drafts(tmp_path: Path, config: ForestConfig) -> None:
    forest = filled(config, turns=120)
    forest.save(tmp_path / "first.npz")
    first = SpecForest.load(tmp_path / "first.npz")
    first.save(tmp_path / "second.npz")
    second = SpecForest.load(tmp_path / "second.npz")
    assert np.array_equal(entries(tmp_path / "first.npz")["digest"], entries(tmp_path / "second.npz")["digest"])
    for name in WEIGHTS.names:
        np.testing.assert_array_equal(first.weights[name], forest.weights[name])
    assert not np.array_equal(first.weights["hashed"], SpecForest(config).weights["hashed"]), "something was learnt"
    assert sorted(os.listdir(tmp_path)) == ["first.npz", "second.npz"]
    assert forest.stats().accepted > 0
    names = ("states", "rollouts", "tokens", "cold_tokens", "evicted_rollouts", "drafted", "accepted", "committed")
    for name in names:
        assert getattr(first.stats(), name) == getattr(forest.stats(), name), name
    assert same(drafts(first), drafts(second))


def test_a_loaded_forest_goes_on_forgetting_in_the_same_order(path: Path) -> None:
    forest = filled()
    loaded = saved_and_loaded(forest, path)
    chance = random.Random(7)
    for turn in range(30):
        at, said = state(chance.randint(0, 5)), spoken(chance)
        forest.insert(at, said)
        loaded.insert(at, said)
        for index in range(6):
            assert loaded.tree(state(index)).to_dict() == forest.tree(state(index)).to_dict(), turn
    assert loaded.stats().evicted_rollouts > 20


def test_live_turns_stay_behind_and_a_smaller_quota_keeps_the_newest_of_each_state(path: Path) -> None:
    forest = SpecForest(CONFIG)
    forest.insert(state(0), [1, 2, END])
    forest.commit(forest.begin([state(0)]), [[3, 3]])
    loaded = saved_and_loaded(forest, path)
    assert (loaded.stats().live, loaded.stats().rollouts, loaded.stats().tokens) == (0, 1, 3)
    assert [child.token for child in loaded.tree(state(0)).children] == [1]
    assert forest.stats().live == 1
    forest = SpecForest(CONFIG)
    for token in (1, 2, 3, 4):
        forest.insert(state(0), [token, END])
    loaded = saved_and_loaded(forest, path, ForestConfig(rollouts_per_state=2))
    assert sorted(child.token for child in loaded.tree(state(0)).children) == [3, 4]
    assert loaded.stats().evicted_rollouts == 2


def test_a_forest_can_be_saved_while_turns_go_on(tmp_path: Path) -> None:
    forest, chance, over = SpecForest(SMALL), random.Random(0), threading.Event()

    def go_on() -> None:
        while not over.is_set():
            handles = forest.begin([state(index) for index in range(6)])
            forest.commit(handles, [spoken(chance) for _ in handles])
            forest.end(handles)

    talker = threading.Thread(target=go_on)
    talker.start()
    try:
        for number in range(10):
            forest.save(tmp_path / f"{number}.npz")
    finally:
        over.set()
        talker.join()
    seen = [SpecForest.load(tmp_path / f"{number}.npz").stats() for number in range(10)]
    assert [stats.committed for stats in seen] == sorted(stats.committed for stats in seen)
    assert seen[-1].committed > 0


@pytest.mark.parametrize("max_cold_tokens", [0, 10_000])
def test_a_smaller_log_keeps_the_newest_and_the_others_without_index(path: Path, max_cold_tokens: int) -> None:
    forest = SpecForest(CONFIG)
    for index in range(100):
        forest.insert(DialogueState.from_tokens([index]), [index] * 29 + [END])
    loaded = saved_and_loaded(forest, path, ForestConfig(max_tokens=1024, max_cold_tokens=max_cold_tokens))
    stats = loaded.stats()
    assert stats.rollouts == (100 if max_cold_tokens else stats.tokens // 30)
    assert 600 <= stats.tokens <= 1024
    assert stats.cold_tokens == (3000 - stats.tokens if max_cold_tokens else 0)
    kept = [index for index in range(100) if loaded.tree(DialogueState.from_tokens([index])).children]
    assert kept == list(range(100 - stats.rollouts, 100))


@pytest.mark.parametrize(("module", "name"), [(np, "savez"), (os, "fsync"), (os, "replace")])
@pytest.mark.parametrize("had_one", [True, False])
def test_a_crash_while_saving_leaves_the_old_file_alone(path, monkeypatch, module, name, had_one):
    def broken(file: Any, *_: Any, **arrays: Any) -> None:
        if name == "savez":
            file.write(b"PK\x03\x04 half a file")
        raise MemoryError

    if had_one:
        filled(turns=5).save(path)
    before = path.read_bytes() if had_one else b""
    with monkeypatch.context() as patch:
        patch.setattr(module, name, broken)
        with pytest.raises(MemoryError):
            filled(turns=9).save(path)
    assert os.listdir(path.parent) == (["forest.npz"] if had_one else [])
    assert not had_one or path.read_bytes() == before


def test_a_truncated_file_is_refused_wherever_it_ends_and_pickles_are_never_read(path: Path) -> None:
    filled(SMALL, turns=12).save(path)
    whole = path.read_bytes()
    for size in [0, 1, 2, 30, *range(100, len(whole), len(whole) // 60), len(whole) - 22, len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedForest, match=r"forest\.npz"):
            SpecForest.load(path)
    np.savez(path, magic=np.array([{"a": 1}], object))
    with pytest.raises(DamagedForest, match=r"allow_pickle"):
        SpecForest.load(path)


def test_a_changed_token_is_refused_for_its_digest_alone(path: Path) -> None:
    filled().save(path)
    arrays = entries(path)
    arrays["held_hot_tokens"][3] += 1
    with open(path, "wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(DamagedForest, match="digest"):
        SpecForest.load(path)
    rewrite(path)
    assert SpecForest.load(path).stats().rollouts == filled().stats().rollouts


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        *[({"magic": magic}, "another kind") for magic in (None, np.zeros(3, np.uint8))],
        *[({name: None}, name) for name in ("format", "held_hot_tokens", "weights_scale", "counters")],
        ({"format": np.array([1])}, r"format \[1\], expected \[2\]"),
        ({"surplus": np.zeros(1)}, "surplus"),
        ({"weights_inner": np.zeros((3, 3), np.float32)}, r"shape \(3, 3\), expected"),
        ({"weights_scale": np.zeros(1)}, "float64 .* expected float32"),
        ({"weights_scale": np.full(1, np.nan, np.float32)}, "finite"),
        ({"held_visited": np.full(6, 1 << 62)}, "visited"),
        ({"held_hot_length": np.full(12, 1 << 62)}, "hot_length"),
        ({"config": np.frombuffer(b"[" * 100_000, np.uint8)}, "nested"),
        ({"counters": np.zeros(2, np.int64)}, "2 counters, expected 3"),
        ({"config": np.frombuffer(b'{"max_tokens": 3}', np.uint8)}, "max_tokens must be"),
        ({"config": np.frombuffer(b'{"max_token": 3000}', np.uint8)}, "'max_token' .* nearest is 'max_tokens'"),
        ({"held_hot_tokens": np.array([3], np.int32)}, "hot_length"),
        ({"held_hot_tokens": np.array([3], np.int64)}, "hot_tokens has dtype int64"),
        ({"held_keys": np.zeros((2, 3), np.uint64)}, "keys"),
        ({"held_cold_state": np.array([99], np.int32)}, "cold_state"),
    ],
)
def test_a_file_that_is_whole_but_not_ours_is_refused_with_the_reason(path: Path, changed: dict, message: str) -> None:
    filled().save(path)
    rewrite(path, **changed)
    with pytest.raises(DamagedForest, match=message) as refused:
        SpecForest.load(path)
    assert str(path) in str(refused.value)
    assert "Load another copy" in str(refused.value)


@pytest.mark.parametrize("config", [DEFAULT, SMALL], ids=["indexed", "cold"])
def test_tokens_beyond_the_vocabulary_enter_no_store(path: Path, config: ForestConfig) -> None:
    filled(config, turns=120).save(path)
    small = SpecForest(replace(config, vocabulary=70_000))
    for enter in (
        lambda: small.insert(state(0), [1, 70_000]),
        lambda: small.insert_all([state(0)] * 2, [[1], [2**31 - 1]]),
        lambda: small.restore(path),
        lambda: SpecForest.load(path, small.config),
    ):
        with pytest.raises(ValueError, match=r"from 0 to 69999, got (70000|2147483647): the turns are"):
            enter()
    assert small.stats().rollouts == 0
    assert SpecForest.load(path, replace(config, vocabulary=70_001)).stats().rollouts > 0


def test_a_store_of_another_tokenizer_is_refused_in_one_line_and_one_without_a_hash_is_ours(path: Path, caplog) -> None:
    ours, others = replace(DEFAULT, tokenizer="a" * 32), replace(DEFAULT, tokenizer="b" * 32)
    filled(others).save(path)
    for enter in (lambda: SpecForest(ours).restore(path), lambda: SpecForest.load(path, ours)):
        with pytest.raises(
            DamagedForest, match=f"expected turns of the tokenizer {'a' * 32}, got turns of b+; use"
        ) as e:
            enter()
        assert "\n" not in str(e.value)
    unknown = SpecForest(DEFAULT)
    unknown.restore(path)
    assert unknown.config == others, "what is saved next is of the tokenizer that the file names"
    assert not caplog.records
    filled(DEFAULT).save(path)
    restored = SpecForest(ours)
    restored.restore(path)
    assert restored.config == ours
    assert [r.getMessage() for r in caplog.records] == [
        f"{path} has no tokenizer hash (older versions saved none): its turns count as this policy's"
    ]
