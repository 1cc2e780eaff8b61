import numpy as np
import pytest
from scipy import stats

from turntree.spec_tree.noise import uniform

SIDE = 400


def grid() -> np.ndarray:
    """Noise of seeds and positions that differ by one, shape (SIDE, SIDE)."""
    return uniform(np.arange(SIDE)[:, None], np.arange(SIDE)[None, :])


def test_values_lie_strictly_between_0_and_1() -> None:
    words = np.array([0, 1, -1, 2**62, -(2**63)])
    values = uniform(words[:, None], words[None, :])
    assert values.dtype == np.float64
    assert ((values > 0) & (values < 1)).all()


def test_a_value_never_changes() -> None:
    expected = [0.2668471864940366, 0.6723679]
    assert uniform(np.array([-1, 5]), np.array([0, 0])) == pytest.approx(expected, abs=1e-7)


def test_a_value_depends_on_seed_and_position_alone() -> None:
    seeds = np.arange(64) * 977
    positions = np.arange(64) % 7
    whole = uniform(seeds, positions)
    order = np.random.default_rng(0).permutation(64)
    assert (uniform(seeds[order], positions[order]) == whole[order]).all()
    assert uniform(seeds[5:6], positions[5:6])[0] == whole[5]


def test_signed_and_unsigned_seeds_of_the_same_bits_agree() -> None:
    signed = np.array([-1, -(2**63), 17])
    assert (uniform(signed, np.zeros(3, np.int64)) == uniform(signed.view(np.uint64), np.zeros(3, np.int64))).all()


def test_seed_and_position_do_not_trade_places() -> None:
    values = grid()
    assert len(np.unique(values)) == values.size


def test_values_are_uniform() -> None:
    counts, _ = np.histogram(grid(), bins=100, range=(0, 1))
    assert stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("lag", [1, 2, 64])
@pytest.mark.parametrize("axis", [0, 1])
def test_neighbours_are_independent(axis: int, lag: int) -> None:
    values = np.moveaxis(grid(), axis, 0)
    here, there = values[:-lag].ravel(), values[lag:].ravel()
    assert abs(np.corrcoef(here, there)[0, 1]) < 4 / np.sqrt(len(here))
    cells = np.histogram2d(here, there, bins=10, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(cells.ravel()).pvalue > 1e-4


def test_the_uniformity_check_would_notice_a_weak_mix() -> None:
    weak = (np.arange(SIDE)[:, None] * 31 + np.arange(SIDE)[None, :]) % 997 / 997
    cells = np.histogram2d(weak[:-1].ravel(), weak[1:].ravel(), bins=10, range=[[0, 1], [0, 1]])[0]
    assert stats.chisquare(cells.ravel()).pvalue < 1e-4
