import io
import os
import random
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from turntree.agents.turn_drafts import precomputed_store
from turntree.agents.turn_drafts.precomputed_store import PrecomputedStore
from turntree.spec_tree import DamagedForest, DialogueState, ForestConfig, SpecForest
from turntree.spec_tree.array_file import ArrayFile, DamagedFile, read_array_file, read_regular
from turntree.spec_tree.rules import ledger_arrays
from turntree.spec_tree.rules.ledger import Ledger, StoredTurn
from turntree.spec_tree.rules.seen_seeds import SeenSeeds
from turntree.spec_tree.store.snapshot import digest

Arrays = dict[str, np.ndarray]
MOST = 1 << 26
"""Bytes that the reading of a damaged file may take."""


def state(number: int) -> DialogueState:
    return DialogueState.from_tokens([number], task=f"task {number % 3}", tools="look(x)" * (number % 2), env="sums")


def turn(chance: random.Random) -> list[int]:
    return [chance.choice((1, 2, 3, 70_000)) for _ in range(chance.randint(1, 20))]


@cache
def whole(kind: str) -> bytes:
    chance, file = random.Random(0), io.BytesIO()
    if kind == "ledger":
        ledger = Ledger(max_tokens=500)
        for number in range(8):
            tokens = np.array(turn(chance), np.int32)
            tops = np.zeros((len(tokens), number % 3))
            ledger.add(
                (1 << 63, 0.5, number),
                StoredTurn(
                    tokens=tokens,
                    logprobs=np.zeros(len(tokens), np.float32),
                    top_ids=tops.astype(np.int32),
                    top_logprobs=tops.astype(np.float32),
                    seed=number or None,
                    version=1,
                    token_limit=30,
                    stopped=True,
                ),
                rank=number,
            )
        np.savez(file, **ledger_arrays.ledger_arrays(ledger))
    elif kind == "run_ahead":
        store = PrecomputedStore(max_tokens=500, trained=SeenSeeds(bits=1024))
        for number in range(8):
            store.put((1 << 63, 0.5, number), number, tuple(turn(chance)), step=number)
            store.show(number)
        np.savez(file, **precomputed_store.precomputed_arrays(store))
    return file.getvalue()


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    chance = random.Random(0)
    store = SpecForest(ForestConfig(max_tokens=1024, rollouts_per_state=8))
    for number in range(90):
        store.insert(state(number % 12), turn(chance))
    assert store.stats().cold_tokens > 0
    path = tmp_path_factory.mktemp("forest") / "forest.npz"
    store.save(path)
    return path.read_bytes()


def use(store: SpecForest) -> None:
    handles = store.begin([state(number) for number in range(4)], [[1, 2, 3]] * 4)
    store.draft(handles, max_nodes=8, max_depths=[8] * 4)
    store.commit(handles, [[1, 2]] * 4)
    store.end(handles)


def read_ledger(path: Path) -> None:
    ledger = Ledger(max_tokens=100)
    ledger_arrays.fill_ledger(ledger, read_array_file(path, ledger_arrays.KINDS, most=1 << 30))
    ledger.close_step()
    ledger.take((1 << 63, 0.5, 3))


def read_precomputed(path: Path) -> None:
    arrays = read_array_file(path, precomputed_store.KINDS, most=1 << 30)
    precomputed_store.precomputed_from_arrays(arrays, max_tokens=100).close_step(4)


class Kind(NamedTuple):
    read: Callable[[Path], None]
    errors: tuple[type[Exception], ...]


KINDS = {
    "forest": Kind(lambda path: use(SpecForest.load(path)), (DamagedForest,)),
    "ledger": Kind(read_ledger, (ValueError,)),
    "run_ahead": Kind(read_precomputed, (ValueError,)),
}
EXTREMES = (0, 1, -1, 127, 255, 2**15, 2**16 - 1, 2**31 - 1, -(2**31), 2**32 - 1, 2**62, 2**63 - 1, -(2**63), 2**64 - 1)
TEXTS = (
    b"[" * 5000,
    b"[[1]," * 2000,
    b'{"a":' * 900,
    b'"text"',
    b"\xff\xfe",
    b"1" * 5000,
    b"NaN",
    b"[[1e999]]",
    b"null",
)


def sealed(kind: str, arrays: Arrays, chance: random.Random) -> bytes:
    file = io.BytesIO()
    if kind == "forest" and chance.random() < 0.97:
        arrays.pop("digest", None)
        arrays["digest"] = digest(arrays)
    (np.savez_compressed if chance.random() < 0.05 else np.savez)(file, **arrays)
    return file.getvalue()


def wrong(array: np.ndarray, chance: random.Random) -> np.ndarray:
    match chance.randrange(8):
        case 0:
            return array.astype(chance.choice(["<i4", "<i8", "<u8", "<u2", "|u1", "<f4", "<f8", "|b1", "<U9", "<c8"]))
        case 1:
            return array[: len(array) // 2] if array.ndim else array.reshape(1)
        case 2:
            return np.concatenate([array, array]) if array.ndim else array
        case 3:
            return array.reshape(*array.shape, 1)
        case 4 if array.dtype == np.uint8:
            return np.frombuffer(chance.choice(TEXTS), np.uint8)
        case 5:
            return np.zeros((0, *array.shape[1:]), array.dtype)
        case 6:
            return np.broadcast_to(array.reshape(-1)[:1], (1, 0, 10**12)) if array.size else array
    changed = array.copy().reshape(-1)
    for _ in range(chance.choice((1, 1, changed.size)) if changed.size else 0):
        value, at = chance.choice(EXTREMES) % 2**64, chance.randrange(changed.size)
        raw = np.frombuffer(value.to_bytes(8, "little"), np.uint8)
        changed[at : at + 1].view(np.uint8)[:] = raw[: changed.itemsize]
    return changed.reshape(array.shape)


def damaged(kind: str, data: bytes, chance: random.Random) -> bytes:
    body = bytearray(data)
    match chance.randrange(8):
        case 0:
            return data[: chance.randrange(len(data))]
        case 1:
            for _ in range(chance.randint(1, 8)):
                body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        case 2:
            size, at = chance.choice((2, 4, 8)), chance.randrange(len(body))
            body[at : at + size] = (chance.choice(EXTREMES) % 2 ** (8 * size)).to_bytes(size, "little")
        case 3:
            at, size = chance.randrange(len(body)), chance.randint(1, 300)
            body[at:at] = body[chance.randrange(len(body)) :][:size]
        case _:
            with np.load(io.BytesIO(body)) as file:
                arrays: Arrays = {name: file[name] for name in file.files}
            for _ in range(chance.choice((1, 1, 1, 2, 4))):
                name = chance.choice(list(arrays))
                match chance.randrange(12):
                    case 0:
                        del arrays[name]
                    case 1:
                        arrays[chance.choice(("surplus", "a" * 80, "../up", "é"))] = arrays[name]
                    case _:
                        arrays[name] = wrong(arrays[name], chance)
            return sealed(kind, arrays, chance)
    return bytes(body)


def fuzz(kind: str, data: bytes, path: Path, count: int, seed: int) -> dict[str, int]:
    chance, found = random.Random(seed), {"refused": 0, "read": 0}
    read, errors = KINDS[kind]
    path.write_bytes(data)
    read(path)
    tracemalloc.start()
    try:
        for number in range(count):
            path.write_bytes(damaged(kind, data, chance))
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            try:
                read(path)
            except errors:
                found["refused"] += 1
            except Exception as error:
                raise AssertionError(f"{kind} {number} of seed {seed}: {error!r}") from error
            else:
                found["read"] += 1
            taken = tracemalloc.get_traced_memory()[1] - before
            assert taken < MOST, f"{kind} {number} of seed {seed} took {taken} bytes"
    finally:
        tracemalloc.stop()
    return found


@pytest.mark.parametrize(
    "count", [75, pytest.param(2500, marks=pytest.mark.release)], ids=["a few", "thousands of each kind"]
)
@pytest.mark.parametrize("kind", list(KINDS))
def test_no_damaged_file_raises_anything_else_or_takes_more_memory(tmp_path, forest, kind, count):
    found = fuzz(kind, forest if kind == "forest" else whole(kind), tmp_path / "file", count, seed=count)
    assert found["refused"] > 0.6 * count, found
    assert found["read"] > 0, "some damage is none, so that what is read is used, too"


@pytest.mark.parametrize("kind", ["ledger", "run_ahead"])
def test_a_reader_without_bounds_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    def unbounded(path: Path) -> None:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        if kind == "ledger":
            ledger_arrays.fill_ledger(Ledger(max_tokens=100), arrays)
        else:
            precomputed_store.precomputed_from_arrays(arrays, max_tokens=100)

    monkeypatch.setitem(KINDS, kind, Kind(unbounded, (ValueError,)))
    with pytest.raises(AssertionError, match="of seed 1"):
        fuzz(kind, whole(kind), tmp_path / "file", 75, seed=1)


def test_what_claims_to_be_larger_than_its_file_is_refused_before_it_is_made(tmp_path: Path) -> None:
    data = whole("ledger")
    header = data[data.index(b"\x93NUMPY") :].split(b"\n")[0]
    told = header.replace(b"(5,)", b"(4000000000,)").replace(b" " * 9, b"", 1)
    assert len(told) == len(header)
    compressed = io.BytesIO()
    np.savez_compressed(compressed, tokens=np.zeros(1 << 20, np.int32))
    for bad in (data.replace(header, told, 1), compressed.getvalue()):
        with pytest.raises(DamagedFile, match=r"does not have \d+ bytes|compressed"):
            ArrayFile(io.BytesIO(bad))


@pytest.mark.parametrize("kind", ["pipe", "folder", "endless"])
def test_what_is_no_regular_file_or_longer_than_allowed_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "endless":
            with path.open("wb") as file:
                file.truncate(1 << 35)
    with pytest.raises(DamagedFile, match=r"not a regular file|expected at most 8388608"):
        read_regular(path, most=1 << 23)
