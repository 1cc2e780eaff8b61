import itertools
import math
import struct

import mpmath
import numpy as np
import pytest
from scipy import stats

from turntree.spec_tree.rules.noise import exponential, uniform

SIDE = 400


def grid() -> np.ndarray:
    """Return noise of seeds and positions that differ by one, shape (SIDE, SIDE)."""
    return uniform(np.arange(SIDE)[:, None], np.arange(SIDE)[None, :])


def test_a_value_between_0_and_1_depends_on_the_bits_of_seed_and_position_alone_and_never_changes() -> None:
    words = np.array([0, 1, -1, 2**62, -(2**63)])
    values = uniform(words[:, None], words[None, :])
    assert values.dtype == np.float64
    assert ((values > 0) & (values < 1)).all()
    expected = [0.2668471864940366, 0.6723679]
    assert uniform(np.array([-1, 5]), np.array([0, 0])) == pytest.approx(expected, abs=1e-7)
    seeds = np.arange(64) * 977
    positions = np.arange(64) % 7
    whole = uniform(seeds, positions)
    order = np.random.default_rng(0).permutation(64)
    assert (uniform(seeds[order], positions[order]) == whole[order]).all()
    assert uniform(seeds[5:6], positions[5:6])[0] == whole[5]
    signed = np.array([-1, -(2**63), 17])
    assert (uniform(signed, np.zeros(3, np.int64)) == uniform(signed.view(np.uint64), np.zeros(3, np.int64))).all()
    values = grid()
    assert len(np.unique(values)) == values.size


def evenness(here: np.ndarray, there: np.ndarray) -> float:
    """Return the p-value of pairs of uniform values over ten by ten cells."""
    cells = np.histogram2d(here.ravel(), there.ravel(), bins=10, range=[[0, 1], [0, 1]])[0]
    return stats.chisquare(cells.ravel()).pvalue


def test_the_evenness_check_would_notice_a_weak_mix() -> None:
    weak = (np.arange(SIDE)[:, None] * 31 + np.arange(SIDE)[None, :]) % 997 / 997
    assert evenness(weak[:-1], weak[1:]) < 1e-4


@pytest.mark.parametrize(
    ("values", "axes", "lags"),
    [(lambda: grid(), 2, (1, 2, 64)), (lambda: np.exp(-cube(60)), 3, (1, 2, 32))],
    ids=["coins", "clocks"],
)
def test_neighbours_are_independent(values, axes: int, lags: tuple[int, ...]) -> None:
    for axis, lag in itertools.product(range(axes), lags):
        along = np.moveaxis(values(), axis, 0)
        here, there = along[:-lag].ravel(), along[lag:].ravel()
        assert abs(np.corrcoef(here, there)[0, 1]) < 4 / np.sqrt(len(here)), (axis, lag)
        assert evenness(here, there) > 1e-4, (axis, lag)


WORDS = np.array([0, 1, 17, -1, 2**62, -(2**63)])


def cube(side: int) -> np.ndarray:
    """Return noise of seeds, positions and tokens that differ by one, shape (side, side, side)."""
    along = np.arange(side)
    return exponential(along[:, None, None], along[:, None], along)


SERIES = [0.14616449685043406, 0.15331721600556042, 0.18182889125261723, 0.2222221113479508]
SERIES += [0.28571428625975487, 0.39999999999899505, 0.666666666666667, 2.0]


def scalar_exponential(seed: int, position: int, token: int) -> tuple[int, float]:
    """Compute the odd multiple of 2**-53 and the noise in Python's integers and floats."""
    golden = 0x9E3779B97F4A7C15

    def mix(x: int) -> int:
        x %= 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    word = mix(mix(mix(seed + golden) + golden * position) + golden * (token + 1))
    odd = 2 * (word >> 12) + 1
    bits = struct.unpack("<q", struct.pack("<d", odd * 2.0**-53))[0]
    exponent = (bits - 0x3FE6A09E667F3BCD) >> 52
    mantissa = struct.unpack("<d", struct.pack("<q", bits - (exponent << 52)))[0]
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = 0.0
    for coefficient in SERIES:
        series = series * square + coefficient
    return odd, -(exponent * 0.6931471805599453 + s * series)


def test_a_clock_depends_on_seed_position_and_token_alone() -> None:
    whole = exponential(WORDS[:, None, None], WORDS[:, None], np.arange(7))
    assert (whole.shape, whole.dtype) == ((6, 6, 7), np.float64)
    for i, j, k in np.ndindex(whole.shape):
        assert exponential(WORDS[i], WORDS[j], np.int64(k)) == whole[i, j, k]


def test_another_implementation_gives_the_same_bits_and_they_are_the_logarithms() -> None:
    for seed in WORDS.tolist():
        for position in (0, 1, 4095):
            ours = exponential(np.int64(seed), np.int64(position), np.array([0, 1, 50256, 151935]))
            theirs = [scalar_exponential(seed, position, token)[1] for token in (0, 1, 50256, 151935)]
            assert ours.tolist() == theirs
    positions = [(seed, position, token) for seed in range(-5, 5) for position in range(10) for token in range(20)]
    with mpmath.workdps(40):
        for position in positions:
            odd, noise = scalar_exponential(*position)
            exact = -mpmath.log(mpmath.mpf(odd) / 2**53)
            assert abs(noise - exact) <= 4 * math.ulp(float(exact))


def test_clocks_are_independent_of_the_coin_of_the_same_position() -> None:
    positions = np.arange(40_000)
    assert evenness(uniform(np.int64(3), positions), np.exp(-exponential(np.int64(3), positions, np.int64(0)))) > 1e-4
