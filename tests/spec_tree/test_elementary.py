"""Logarithm and logistic function against numpy's in double precision."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from turntree.spec_tree.compiled import kernel
from turntree.spec_tree.elementary import logarithm, logistic

_Floats = NDArray[np.float32]


@kernel
def _both(
    x: NDArray[np.float32], y: NDArray[np.float32], logs: NDArray[np.float32], shares: NDArray[np.float32]
) -> None:
    for i in range(len(x)):
        logs[i], shares[i] = logarithm(x[i]), logistic(y[i])


@pytest.fixture(scope="module")
def computed() -> tuple[_Floats, ...]:
    rng = np.random.default_rng(0)
    x = np.exp(np.concatenate([rng.uniform(-69, 69, 50_000), rng.uniform(-1, 1, 50_000)])).astype(np.float32)
    y = np.concatenate([rng.uniform(-30, 30, 50_000), rng.uniform(-1, 1, 50_000)]).astype(np.float32)
    x[:4], y[:4] = [1.0, 0.5, 2.0, np.float32(1) - np.float32(2**-24)], [0.0, 1e4, -1e4, np.inf]
    logs, shares = np.empty_like(x), np.empty_like(y)
    _both(x, y, logs, shares)
    return x, y, logs, shares


def test_logarithm(computed: tuple[_Floats, ...]) -> None:
    x, _, logs, _ = computed
    exact = np.log(x.astype(np.float64))
    assert np.abs(logs - exact).max() < 1e-5
    near = np.abs(exact) < 1
    assert np.abs(logs - exact)[near].max() < 3e-7
    assert logs[0] == 0.0


def test_logistic(computed: tuple[_Floats, ...]) -> None:
    _, y, _, shares = computed
    with np.errstate(over="ignore"):
        exact = 1 / (1 + np.exp(-y.astype(np.float64)))
    usual = np.abs(y) <= 30
    assert np.abs(shares[usual] / exact[usual] - 1).max() < 1e-6
    assert shares[[0, 1, 3]] == pytest.approx([0.5, 1.0, 1.0], rel=1e-6)
    assert 0 < shares[2] < 1e-30
    assert np.isfinite(shares).all()
    assert ((shares > 0) & (shares < 1.000001)).all()
