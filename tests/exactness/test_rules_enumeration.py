"""The enumeration that the proofs stand on sees every path, every region of a coin and every order of clocks."""

from __future__ import annotations

import numpy as np
import pytest
from benchmark_modules import benchmark_module

from turntree.spec_tree.noise import exponential
from turntree.spec_tree.verify import race


@pytest.fixture(scope="module")
def enumeration():
    return benchmark_module("enumeration")


def test_every_path_is_run_with_its_probability(enumeration):
    def run(choose):
        first = choose([0.25, 0.0, 0.75])
        return first if first else (first, choose([0.5, 0.5]))

    assert enumeration.outcomes(run) == {(0, 0): 0.125, (0, 1): 0.125, 2: 0.75}


def test_thresholds_are_found_to_the_last_bit(enumeration):
    steps = np.array([1e-9, 0.3, 0.3 + 1e-12, 0.99999])
    found = enumeration.regions(lambda coins: (coins[:, None] < steps).sum(-1))
    assert [region.decision for region in found] == [4, 3, 2, 1, 0]
    assert [region.probability for region in found] == pytest.approx(np.diff([0, *steps, 1]), abs=1e-16)
    for region in found:
        assert (region.coin < steps).sum() == region.decision


def test_a_decision_that_no_coin_changes_is_one_region(enumeration):
    assert enumeration.regions(lambda coins: coins < 2) == [(1.0, 0.5, 1)]


def test_total_variation_counts_outcomes_of_either_law(enumeration):
    assert enumeration.tv({1: 1.0}, {2: 1.0}) == 1.0
    assert enumeration.tv({1: 0.5, 2: 0.5}, {1: 0.75, 3: 0.25}) == 0.5


@pytest.mark.parametrize("vocabulary", [2, 3, 5])
def test_racing_laws_each_keep_their_own_probabilities(enumeration, vocabulary):
    rng = np.random.default_rng(vocabulary)
    for _ in range(20):
        q, p = rng.dirichlet(np.full(vocabulary, 0.6), size=2)
        p[0] = 0.0
        p /= p.sum()
        joint = enumeration.race_joint(q, p)
        assert np.abs(joint.sum(1) - q).max() < 1e-12
        assert np.abs(joint.sum(0) - p).max() < 1e-12
        distance = np.abs(p - q).sum() / 2
        assert np.trace(joint) >= (1 - distance) / (1 + distance) - 1e-12


def test_the_joint_law_of_a_race_is_that_of_real_clocks(enumeration):
    q, p = np.array([0.5, 0.2, 0.3]), np.array([0.2, 0.5, 0.3])
    noise = exponential(np.int64(3), np.arange(50_000)[:, None], np.arange(3))
    counts = np.zeros((3, 3))
    np.add.at(counts, (race(q, noise), race(p, noise)), 1)
    joint = enumeration.race_joint(q, p)
    assert np.abs(counts / 50_000 - joint).max() < 5 * np.sqrt(0.25 / 50_000)
    assert np.abs(np.outer(q, p) - joint).max() > 0.1, "they are far from independent"
