from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.typing import NDArray

from turntree.spec_tree.kernels.compiled import int32, int64, kernel
from turntree.spec_tree.kernels.instructions import add, alike8, as_bits, equal16, fetch, from_bits, lowest, where
from turntree.spec_tree.kernels.weighing import logarithm, logistic

Ints, Longs, Floats = NDArray[np.int32], NDArray[np.int64], NDArray[np.float32]


@kernel
def _try(first: Ints, second: Ints, asked: Longs, found: Longs, real: Floats) -> None:
    fetch(first, int64(3))
    for i in range(len(asked)):
        at, other, value, stop = asked[i, 0], asked[i, 1], asked[i, 2], asked[i, 3]
        found[i, 0] = equal16(first, at, int32(value))
        found[i, 1] = alike8(first, at, second, other)
        found[i, 2] = where(value, first, at, stop)
        found[i, 3] = lowest(at)
    real[0], real[1] = from_bits(int32(as_bits(real[0]) + int32(1 << 23))), real[0]


def plain(first: list[int], second: list[int], at: int, other: int, value: int, stop: int) -> list[int]:
    alike = 0
    while alike < 8 and first[at - alike] == second[other - alike] and first[at - alike] >= 0:
        alike += 1
    equal = sum(1 << i for i in range(16) if first[at + i] == value)
    here = [i for i in range(at, stop) if first[i] == value]
    return [equal, alike, here[0] if here else -1, (at & -at).bit_length() - 1]


def test_they_do_what_plain_python_does() -> None:
    rng = np.random.default_rng(0)
    first, second = (rng.integers(-1, 2, 200).astype(np.int32) for _ in range(2))
    second[60:100] = first[40:80] = rng.integers(0, 4, 40)  # so that all 8 are often alike
    asked = np.stack([rng.integers(low, high, 3000) for low, high in ((8, 180), (8, 200), (-1, 3), (0, 180))], axis=1)
    asked[:500, 0], asked[:500, 1] = np.arange(500) % 40 + 40, np.arange(500) % 40 + 60
    asked[:, 3] = np.clip(asked[:, 0] + rng.integers(-3, 40, 3000), 0, 185)
    found = np.zeros_like(asked)
    real = np.array([1.5, 0.0], np.float32)
    _try(first, second, asked, found, real)
    expected = [plain(first.tolist(), second.tolist(), *row) for row in asked.tolist()]
    assert found.tolist() == expected
    assert (np.bincount(found[:, 1], minlength=9) > 0).all(), "each number of alike entries came up"
    assert real.tolist() == [3.0, 1.5]


@kernel
def _both(x: Floats, y: Floats, logs: Floats, shares: Floats) -> None:
    for i in range(len(x)):
        logs[i], shares[i] = logarithm(x[i]), logistic(y[i])


@pytest.fixture(scope="module")
def computed() -> tuple[Floats, ...]:
    rng = np.random.default_rng(0)
    x = np.exp(np.concatenate([rng.uniform(-69, 69, 50_000), rng.uniform(-1, 1, 50_000)])).astype(np.float32)
    y = np.concatenate([rng.uniform(-30, 30, 50_000), rng.uniform(-1, 1, 50_000)]).astype(np.float32)
    x[:4], y[:4] = [1.0, 0.5, 2.0, np.float32(1) - np.float32(2**-24)], [0.0, 1e4, -1e4, np.inf]
    logs, shares = np.empty_like(x), np.empty_like(y)
    _both(x, y, logs, shares)
    return x, y, logs, shares


def test_logarithm_and_logistic(computed: tuple[Floats, ...]) -> None:
    x, _, logs, _ = computed
    exact = np.log(x.astype(np.float64))
    assert np.abs(logs - exact).max() < 1e-5
    near = np.abs(exact) < 1
    assert np.abs(logs - exact)[near].max() < 3e-7
    assert logs[0] == 0.0
    _, y, _, shares = computed
    with np.errstate(over="ignore"):
        exact = 1 / (1 + np.exp(-y.astype(np.float64)))
    usual = np.abs(y) <= 30
    assert np.abs(shares[usual] / exact[usual] - 1).max() < 1e-6
    assert shares[[0, 1, 3]] == pytest.approx([0.5, 1.0, 1.0], rel=1e-6)
    assert 0 < shares[2] < 1e-30
    assert np.isfinite(shares).all()
    assert ((shares > 0) & (shares < 1.000001)).all()


@kernel
def _count(counts: Longs, times: int) -> None:
    for _ in range(times):
        add(counts, int64(1), int64(1))


def test_threads_that_add_to_one_number_lose_none() -> None:
    counts = np.array([5, -7, 5])
    _count(counts, 0)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda times: _count(counts, times), [200_000] * 4))
    assert counts.tolist() == [5, 800_000 - 7, 5]
