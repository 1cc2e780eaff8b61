"""Real draws and the chi-square test over whole turns: it has the power that the report's rows state."""

from __future__ import annotations

import numpy as np
import pytest
from benchmark_modules import benchmark_module


@pytest.fixture(scope="module")
def draws():
    return benchmark_module("rule_draws")


def test_plain_draws_have_the_policys_law_and_those_of_another_policy_are_noticed(draws):
    p, seeds = draws.table(0, 3, 3), np.arange(60_000)
    assert draws.power(len(seeds), len(p.cells), 0.02, 1e-3) > 0.999
    assert draws.chi_square(draws.plain(p, seeds), p.cells).p_value > 1e-3
    assert draws.chi_square(draws.plain(draws.drifted(p, 3, 0.15), seeds), p.cells).p_value < 1e-9


def test_a_replay_and_plain_decoding_agree_token_for_token_whatever_the_drift(draws):
    seeds = np.arange(3000) * 7 - 5000
    p = draws.table(1, 4, 5)
    for drift in (0.0, 0.5, 3.0):
        stored = draws.plain(draws.drifted(p, 2, drift), seeds)
        assert (draws.replay(p, stored, seeds) == draws.plain(p, seeds)).all()
    assert (draws.replay(p, stored, seeds, keyed_by_step=True) != draws.plain(p, seeds)).any()


def test_the_power_is_what_repeated_tests_find(draws):
    """A law at total variation 0.02 whose difference is spread as the bound has it, drawn 300 times."""
    rng = np.random.default_rng(0)
    law = np.full(10, 0.1)
    other = law * (1 + 0.04 * np.resize([1, -1], 10))
    sizes, found = 4000, 0
    for _ in range(300):
        turns = rng.choice(10, size=(sizes, 1), p=other)
        found += draws.chi_square(turns, law).p_value < 0.05
    assert found / 300 == pytest.approx(draws.power(sizes, 10, 0.02, 0.05), abs=4 * np.sqrt(0.25 / 300))


def test_cells_with_few_expected_are_merged(draws):
    law = np.array([0.5, 0.4, 0.0994, 0.0003, 0.0003])
    turns = np.repeat(np.arange(5), [5000, 4000, 995, 3, 2])[:, None]
    assert draws.chi_square(turns, law).cells == 4
