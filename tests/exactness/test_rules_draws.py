"""The rules through real draws: chi-square over whole turns, with the power stated.

60,000 turns of 3 tokens out of 3 (27 cells): a law at total variation 0.02 is seen with probability above 0.999 at the
level 0.001.
"""

from __future__ import annotations

import numpy as np
import pytest

DRAWS, LEVEL = 60_000, 1e-3


@pytest.fixture(scope="module")
def draws(proof):
    return proof("rule_draws")


@pytest.fixture(scope="module")
def p(draws):
    return draws.table(0, 3, 3)


@pytest.fixture(scope="module")
def q(draws, p):
    return draws.drifted(p, 1)


SEEDS = np.arange(DRAWS)


def test_the_test_has_the_power_that_is_claimed(draws, p):
    assert draws.power(DRAWS, len(p.cells), 0.02, LEVEL) > 0.999
    assert draws.power(300_000, 81, 0.01, LEVEL) > 0.999


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


@pytest.mark.parametrize("rule", ["plain", "point_mass", "ratio", "replay"])
def test_turns_have_the_policys_law(draws, p, q, rule):
    turns = {
        "plain": lambda: draws.plain(p, SEEDS),
        "point_mass": lambda: draws.point_mass(p, SEEDS),
        "ratio": lambda: draws.ratio(p, q, SEEDS),
        "replay": lambda: draws.replay(p, draws.plain(q, SEEDS), SEEDS),
    }[rule]()
    assert draws.chi_square(turns, p.cells).p_value > LEVEL


@pytest.mark.parametrize("fault", ["no residual", "drawn again", "another policy"])
def test_a_faulty_rule_is_noticed(draws, p, q, fault):
    turns = {
        "no residual": lambda: draws.ratio(p, q, SEEDS, released=True),
        "drawn again": lambda: draws.point_mass(p, SEEDS, resample=True),
        "another policy": lambda: draws.plain(draws.drifted(p, 3, 0.15), SEEDS),
    }[fault]()
    assert draws.chi_square(turns, p.cells).p_value < 1e-9
