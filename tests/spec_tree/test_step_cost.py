from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from turntree.spec_tree.step_cost import StepCost, rising

SIZES = [(8, 8 + extra) for extra in (0, 4, 12, 30, 60, 120)]


def learnt(seconds, sizes=SIZES, rounds=30, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    cost = StepCost()
    for _ in range(rounds):
        for rows, tokens in sizes:
            cost.observe(rows, tokens, seconds(rows, tokens) * float(np.exp(noise * rng.standard_normal())))
    return cost


def stairs(rows, tokens):
    return 0.01 * -(-tokens // 32)


@pytest.mark.parametrize(
    "truth", [lambda b, m: 0.02, lambda b, m: 0.01 + 0.001 * m, lambda b, m: 0.01 * max(1, m / 32), stairs]
)
def test_any_rising_cost_is_learnt_where_it_was_measured(truth):
    cost = learnt(truth, noise=0.05)
    for rows, tokens in SIZES:
        assert cost.seconds(rows, [tokens])[0] == pytest.approx(truth(rows, tokens), rel=0.08)


def test_what_a_request_costs_is_told_from_what_a_token_costs():
    def truth(rows, tokens):
        return 0.01 + 0.004 * rows + 0.0005 * tokens

    cost = learnt(truth, [(b, b + n) for b in (2, 4, 8, 16) for n in (0, 8, 24)], noise=0.03)
    few, many = cost.seconds(2, [32])[0], cost.seconds(16, [32])[0]
    assert few == pytest.approx(truth(2, 32), rel=0.12)
    assert many == pytest.approx(truth(16, 32), rel=0.12)


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 500), st.floats(1e-4, 10)), min_size=3, max_size=40))
def test_expected_seconds_are_positive_and_never_fall_with_tokens(steps):
    cost = StepCost()
    for rows, drafts, seconds in steps:
        cost.observe(rows, rows + drafts, seconds)
    expected = cost.seconds(16, np.arange(16, 3000, 7))
    assert (expected > 0).all()
    assert (np.diff(expected) >= -1e-9 * expected[:-1]).all()


def test_hiccups_and_the_first_steps_do_not_count_as_costs():
    calm = learnt(lambda b, m: 0.02 + 0.001 * m)
    cost = StepCost()
    for _ in range(2):
        cost.observe(8, 8, 60.0)
    for number in range(180):
        rows, tokens = SIZES[number % 6]
        hiccup = 50 if number % 29 == 28 else 1
        cost.observe(rows, tokens, (0.02 + 0.001 * tokens) * hiccup)
    at = [8, 20, 68]
    np.testing.assert_allclose(cost.seconds(8, at), calm.seconds(8, at), rtol=0.25)


def test_a_slower_machine_is_believed_after_a_while():
    cost = learnt(lambda b, m: 0.02)
    for _ in range(60):
        cost.observe(8, 8, 0.1)
    assert cost.seconds(8, [8])[0] == pytest.approx(0.1, rel=0.15)


def test_beyond_what_was_measured_the_cost_goes_on_rising_as_it_did():
    cost = learnt(lambda b, m: 0.01 + 0.001 * m)
    assert cost.seconds(8, [1000])[0] == pytest.approx(1.01, rel=0.15)


def test_a_table_may_be_measured_at_the_start_and_one_slow_run_does_not_matter():
    runs = iter(range(1000))

    def step_time(rows, tokens):
        return (0.01 + 0.001 * tokens) * (20 if next(runs) % 3 == 0 else 1)

    cost = StepCost.measure(step_time, SIZES)
    np.testing.assert_allclose(cost.seconds(8, [8, 68]), [0.018, 0.078], rtol=0.2)


@given(arrays.arrays(np.float64, st.integers(1, 12), elements=st.floats(-5, 5)))
def test_rising_values_are_means_of_their_neighbours(values):
    fitted = rising(values, np.ones(len(values)))
    assert (np.diff(fitted) >= 0).all()
    assert fitted.sum() == pytest.approx(values.sum(), abs=1e-9)


def test_values_that_rise_stay_and_heavy_ones_give_way_less():
    assert rising(np.array([1.0, 2.0, 3.0]), np.ones(3)).tolist() == [1, 2, 3]
    assert rising(np.array([3.0, 1.0]), np.array([3.0, 1.0])).tolist() == [2.5, 2.5]
