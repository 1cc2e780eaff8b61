import numpy as np
import pytest

from turntree.spec_tree.budget.draft_agreement import AgreementRate, DraftAgreement


def batch(dice, rows, chances):
    """Draw a batch in which a draft agrees at a depth with the given chance, if it agreed at the depths before."""
    agreed = np.cumprod(dice.random((rows, len(chances))) < chances, axis=1).sum(0)
    return DraftAgreement(rows, np.full(len(chances), rows), agreed, shadow=True)


def learn(chances, rows, batches, seed=0):
    dice, rate = np.random.default_rng(seed), AgreementRate()
    for _ in range(batches):
        rate.learn(batch(dice, rows, chances))
    return rate


@pytest.mark.parametrize("rows", [4, 64, 256])
def test_the_expected_tokens_are_those_of_the_batches(rows):
    chances = np.array([0.9, 0.8, 0.5, 0.5])
    means = [np.mean([learn(chances, rows, 100, seed).tokens(width) for seed in range(20)]) for width in range(5)]
    assert means == pytest.approx(1 + np.concatenate([[0], np.cumsum(np.cumprod(chances))]), rel=0.04)


def test_its_lower_bound_leaves_out_the_errors_of_few_requests():
    few = learn([0.9] * 4, 2, 2)
    assert few.tokens(4, errors=1.0) < 0.8 * few.tokens(4)
    many = learn([0.5] * 4, 256, 20)
    assert many.tokens(4, errors=1.0) == pytest.approx(many.tokens(4), rel=0.05)


def test_one_batch_after_a_jump_shows_it():
    dice, rate = np.random.default_rng(0), learn([0.0] * 8, 256, 100)
    assert rate.tokens(8) == 1
    rate.learn(batch(dice, 256, [0.95] * 8))
    assert rate.tokens(8, errors=1.0) > 3


def test_depths_that_are_no_longer_drafted_are_believed_as_good_as_the_one_before_after_a_while():
    dice, rate = np.random.default_rng(0), learn([0.9, 0.0, 0.0], 64, 50)
    assert rate.tokens(3) == pytest.approx(1.9, rel=0.05)
    for _ in range(2000):
        rate.learn(batch(dice, 64, [0.9]))
    assert rate.tokens(3) == pytest.approx(1 + 0.9 + 0.81 + 0.729, rel=0.1)
