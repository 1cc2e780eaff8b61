"""One forest for several processes: what readers see, what they cannot break, and who cleans up."""

import gc
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forest_reading import (
    END,
    FIRST,
    OtherProcess,
    complaints,
    draft,
    drop,
    keep_drafting,
    other_process,
    state,
    writer_closed,
)

from turntree.spec_tree import (
    DamagedForest,
    DraftBatch,
    ForestConfig,
    ForestError,
    ForestReader,
    SharedForest,
    SpecForest,
    UnknownTurn,
)
from turntree.spec_tree import shared_arrays as blocks

CONFIG = ForestConfig(end_tokens=frozenset({END}), max_tokens=4096, rollouts_per_state=8)


@pytest.fixture(scope="module")
def other() -> Iterator[OtherProcess]:
    with other_process() as process:
        yield process


@pytest.fixture
def forest() -> Iterator[SharedForest]:
    with SharedForest(CONFIG) as forest:
        yield forest


def spoken(chance: random.Random, longest: int = 40) -> list[int]:
    """A turn of few different tokens, so that turns are alike here and there."""
    base = FIRST + 10 * chance.randint(0, 99)
    return [base + chance.randint(0, 3) for _ in range(chance.randint(1, longest))] + [END]


def fill(forest: SpecForest, turns: int = 40, seed: int = 0) -> None:
    chance = random.Random(seed)
    for turn in range(turns):
        forest.insert(state(turn % 6), spoken(chance))


def drafted(forest: SpecForest, at: int, said: list[int]) -> list[list[float]]:
    """As ``forest_reading.draft``, by the forest itself."""
    handles = forest.begin([state(at)])
    forest.commit(handles, [said])
    batch = forest.draft(handles, max_nodes=16, room=[8])
    forest.end(handles, keep=False)
    return [getattr(batch, name).tolist() for name in DraftBatch.__slots__]


def exists(name: str) -> bool:
    try:
        ForestReader.attach(name).close()
    except DamagedForest:
        return True
    except ForestError:
        return False
    return True


def test_a_shared_forest_drafts_as_a_private_one_does(forest: SharedForest) -> None:
    private = SpecForest(CONFIG)
    fill(forest)
    fill(private)
    for at in range(7):
        assert drafted(forest, at, []) == drafted(private, at, [])
    assert len(drafted(forest, 0, [])[0]) > 4


def test_another_process_drafts_what_was_inserted_before_and_after_it_attached(
    forest: SharedForest, other: OtherProcess
) -> None:
    forest.insert(state(0), [1001, 1002, 1003, END])
    assert other.ask(forest.name, draft, 0, [])[0][:3] == [1001, 1002, 1003]
    assert other.ask(forest.name, draft, 0, [1001, 1002])[0] == [1003, END]
    assert 1500 not in other.ask(forest.name, draft, 1, [])[0]
    forest.insert(state(1), [1500, 1501, END])
    assert other.ask(forest.name, draft, 1, [])[0][:2] == [1500, 1501]
    live = forest.begin([state(2)])
    forest.commit(live, [[1700, 1701, 1702]])
    assert other.ask(forest.name, draft, 2, [])[0][:3] == [1700, 1701, 1702]
    forest.end(live, keep=False)
    assert 1700 not in other.ask(forest.name, draft, 2, [])[0][:1]


def test_a_reader_gets_the_drafts_that_the_writer_would_give(forest: SharedForest, other: OtherProcess) -> None:
    fill(forest, turns=10)  # so few that the writer's own turn, which it finds too, keeps no other from being looked at
    for at in range(7):
        for said in ([], [FIRST + 1], [FIRST + 10, FIRST + 11]):
            alike = SpecForest(CONFIG)
            fill(alike, turns=10)
            assert_alike(other.ask(forest.name, draft, at, said), drafted(alike, at, said))


def assert_alike(one: list[list[float]], another: list[list[float]]) -> None:
    """Two batches are equal, estimates up to float32: kernels that are compiled apart may round in other ways."""
    for name, left, right in zip(DraftBatch.__slots__, one, another, strict=True):
        assert left == (pytest.approx(right, rel=1e-5) if name == "probabilities" else right), name


def test_what_a_reader_says_is_its_own(forest: SharedForest) -> None:
    fill(forest)
    before = [array.copy() for array in forest._shared.arrays.flat().values()]
    with ForestReader.attach(forest.name) as reader:
        handles = reader.begin([state(0), state(3)], [[1, 2, 3, 4], [1, 2]])
        for _ in range(50):
            batch = reader.draft(handles, max_nodes=16, room=[8, 8])
            reader.advance(handles, [batch.tokens[:1].tolist() or [7], [8]])
        reader.end(handles)
    for array, old in zip(forest._shared.arrays.flat().values(), before, strict=True):
        np.testing.assert_array_equal(array, old)
    assert forest.stats().live == 0


def test_a_reader_joins_the_tree_again_as_the_writer_does(forest: SharedForest) -> None:
    said = [1000 + 7 * index % 90 for index in range(60)]
    forest.insert(state(0), [*said, END])
    with ForestReader.attach(forest.name) as reader:
        theirs, mine = reader.begin([state(0)]), forest.begin([state(0)])
        for token in [*said[:20], 1990, 1991, *said[22:40]]:
            expected = forest.draft(mine, max_nodes=8, room=[8])
            assert reader.draft(theirs, max_nodes=8, room=[8]).tokens.tolist() == expected.tokens.tolist()
            reader.advance(theirs, [[token]])
            forest.commit(mine, [[token]])


def test_a_reader_refuses_what_a_forest_refuses(forest: SharedForest) -> None:
    with ForestReader.attach(forest.name) as reader:
        handles = reader.begin([state(0)])
        with pytest.raises(ValueError, match="one entry a row: expected 1, got 2"):
            reader.draft(handles, max_nodes=4, room=[1, 2])
        with pytest.raises(ValueError, match="token ids"):
            reader.advance(handles, [[-1]])
        with pytest.raises(ValueError, match="one entry a state"):
            reader.begin([state(0)], [])
        with pytest.raises(ValueError, match="each turn once"):
            reader.end([handles[0], handles[0]])
        reader.end(handles)
        with pytest.raises(UnknownTurn):
            reader.advance(handles, [[1]])
        with pytest.raises(UnknownTurn):
            reader.end(handles)


def test_a_reader_has_room_for_many_turns(forest: SharedForest) -> None:
    forest.insert(state(0), [1001, END])
    with ForestReader.attach(forest.name) as reader:
        handles = reader.begin([state(0)] * 600)
        assert reader.draft(handles, max_nodes=1, room=[1] * 600).tokens.tolist() == [1001] * 600


def test_20000_drafts_beside_a_writer_are_well_formed(forest: SharedForest, other: OtherProcess) -> None:
    chance = random.Random(0)
    other.start(forest.name, keep_drafting, 20_000)
    rounds = 0
    while not other.done():
        rounds += 1
        handles = forest.begin([state(chance.randint(0, 5)) for _ in range(8)])
        turns = [spoken(chance) for _ in handles]
        while any(turns):
            forest.draft(handles, max_nodes=4, room=[4] * 8)
            forest.commit(handles, [turn[:5] for turn in turns])
            turns = [turn[5:] for turn in turns]
        forest.end(handles[:6])
        forest.end(handles[6:], keep=False)
        forest.insert(state(chance.randint(0, 5)), spoken(chance))
        if rounds % 50 == 0:
            forest.clear()
    wrong, nodes, closed = other.answer()
    assert wrong == []
    assert nodes > 20_000
    assert not closed
    assert forest.stats().committed > 3 * CONFIG.max_tokens, "the ring did not wrap"


def batch(**changed: Any) -> DraftBatch:
    good = DraftBatch(
        tokens=np.array([1001, 1002, END], np.int32),
        parents=np.array([-1, 0, 0], np.int32),
        depths=np.array([1, 2, 2], np.int32),
        probabilities=np.array([0.5, 0.25, 0.125], np.float32),
        offsets=np.array([0, 3]),
    )
    return replace(good, **{name: np.array(values) for name, values in changed.items()})


def test_the_check_of_a_draft_notices_each_fault() -> None:
    assert complaints(batch(), [-1], 2) == []
    assert complaints(batch(parents=[-1, 2, 0]), [-1], 2) == ["a parent after its child"]
    assert complaints(batch(tokens=[1001, END, END]), [-1], 2) == ["siblings alike"]
    assert complaints(batch(depths=[1, 2, 3]), [-1], 3) == ["a wrong depth"]
    assert complaints(batch(), [-1], 1) == ["a wrong depth"]
    assert complaints(batch(tokens=[1001, 5000, END]), [-1], 2) == ["a token that was never inserted"]
    assert complaints(batch(tokens=[END, 1002, END]), [-1], 2) == ["a token after the end"]
    assert complaints(batch(), [END], 2) == ["a token after the end"]
    assert complaints(batch(probabilities=[0.5, 0.6, 0.1]), [-1], 2) == ["a child more probable than its parent"]


def test_readers_go_on_with_what_they_see_when_the_writer_closes(other: OtherProcess) -> None:
    with SharedForest(CONFIG) as forest:
        forest.insert(state(0), [1001, 1002, END])
        name = forest.name
        assert not other.ask(name, writer_closed)
    assert other.ask(name, writer_closed)
    assert other.ask(name, draft, 0, [])[0][:2] == [1001, 1002]
    with pytest.raises(ForestError, match="no shared memory is named"):
        ForestReader.attach(name)
    assert drafted(forest, 0, [])[0][:2] == [1001, 1002]
    forest.close()


def test_a_closed_reader_says_so(forest: SharedForest) -> None:
    reader = ForestReader.attach(forest.name)
    reader.close()
    reader.close()
    for call in (
        lambda: reader.begin([state(0)]),
        lambda: reader.draft([], max_nodes=1, room=[]),
        lambda: reader.writer_closed,
    ):
        with pytest.raises(ForestError, match="attach to the forest again"):
            call()


def test_a_reader_that_leaves_does_not_take_the_memory_along(forest: SharedForest, other: OtherProcess) -> None:
    forest.insert(state(0), [1001, END])
    assert other.ask(forest.name, draft, 0, [])[0][:1] == [1001]
    other.ask(forest.name, drop)
    assert exists(forest.name)


LEAVES = """
import sys
from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.shared import ForestReader, SharedForest
reader = ForestReader.attach(sys.argv[1])
forest = SharedForest(ForestConfig(max_tokens=2048))
print(forest.name)
"""


def test_a_process_that_ends_takes_its_own_memory_along_and_nothing_else(forest: SharedForest) -> None:
    ended = subprocess.run([sys.executable, "-c", LEAVES, forest.name], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not exists(ended.stdout.strip())
    assert exists(forest.name)


def test_memory_goes_with_the_forest() -> None:
    forest = SharedForest(CONFIG)
    name = forest.name
    assert exists(name)
    del forest
    gc.collect()
    assert not exists(name)


def test_clearing_is_seen_by_readers(forest: SharedForest) -> None:
    fill(forest)
    with ForestReader.attach(forest.name) as reader:
        handles = reader.begin([state(0)])
        assert len(reader.draft(handles, max_nodes=4, room=[4]).tokens)
        forest.clear()
        assert len(reader.draft(handles, max_nodes=4, room=[4]).tokens) == 0
        forest.insert(state(0), [1001, END])
        assert reader.draft(handles, max_nodes=4, room=[4]).tokens.tolist()[:1] == [1001]


def test_a_shared_forest_never_outgrows_its_arrays() -> None:
    with SharedForest(replace(CONFIG, max_tokens=1 << 17)) as forest, ForestReader.attach(forest.name) as reader:
        for index in range(10_000):  # twice around
            forest.insert(state(index), [FIRST + index % 1000])
        store = forest._rollouts.store
        shared = forest._shared.arrays
        for own, other in zip((*store.log, store.keys), (*shared.log, shared.keys), strict=True):
            assert own is other
        handles = reader.begin([state(9_999)])
        assert reader.draft(handles, max_nodes=1, room=[1]).tokens.tolist() == [FIRST + 999]


def test_a_saved_forest_is_loaded_into_shared_memory(forest: SharedForest, tmp_path: Path) -> None:
    fill(forest)
    forest.save(tmp_path / "forest.npz")
    with SharedForest.load(tmp_path / "forest.npz", name="turntree-test-loaded") as loaded:
        assert loaded.name == "turntree-test-loaded"
        with ForestReader.attach(loaded.name) as reader:
            assert draft(reader, 0, [])[0] == drafted(loaded, 0, [])[0] != []


def test_a_name_that_is_taken_is_refused(forest: SharedForest) -> None:
    with pytest.raises(ForestError, match=f"the name '{forest.name}' of shared memory is taken"):
        SharedForest(CONFIG, name=forest.name)


def test_too_little_shared_memory_is_told_before_it_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(blocks, "_reserve", full)
    with pytest.raises(ForestError, match=r"bytes of shared memory are needed.*lower ForestConfig.max_tokens"):
        SharedForest(CONFIG, name="turntree-test-full")
    assert not exists("turntree-test-full")


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    block = SharedMemory(create=True, size=1 << 16)
    yield block
    block.close()
    block.unlink()


@pytest.mark.parametrize(
    ("at", "content", "message"),
    [
        (0, b"", "mark of a forest"),
        (0, b"another", "mark of a forest"),
        (8, b"\3", "version 3, expected 2"),
        (12, b"\xff\xff", "header cannot be read"),
        (30, b"!!!!", "header cannot be read"),
    ],
)
def test_memory_of_another_kind_is_refused(
    forest: SharedForest, memory: SharedMemory, at: int, content: bytes, message: str
) -> None:
    if message != "mark of a forest":
        memory.buf[:4000] = forest._shared.block.buf[:4000]
    memory.buf[at : at + len(content)] = content
    with pytest.raises(DamagedForest, match=message):
        ForestReader.attach(memory.name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"log.tokens": ["<i4", [4096]]', b'"log.tokens": ["<i4", [8192]]', "log.links is laid out as"),
        (b"('scale', '<f4')", b"('scale', '<f8')", "weights is laid out as"),
        (b'"log.owner"', b'"log.other"', "log.owner is laid out as None"),
        (b'\\"max_tokens\\": 4096', b'\\"max_tokens\\": 0096', "header cannot be read"),
        (b"", b"", r"has 65536 bytes, expected \d+"),
    ],
)
def test_memory_of_another_layout_is_refused(
    forest: SharedForest, memory: SharedMemory, old: bytes, new: bytes, message: str
) -> None:
    header = bytes(forest._shared.block.buf[:4000])
    assert old in header
    memory.buf[:4000] = header.replace(old, new)
    with pytest.raises(DamagedForest, match=message):
        ForestReader.attach(memory.name)
