"""Rollouts made ahead have the law of the policy that is trained meanwhile, over all regions of the clocks."""

from __future__ import annotations

import pytest

EXACT, NOTICED = 1e-12, 0.01
SEEDS = range(4)


@pytest.fixture(scope="module")
def laws(proof):
    return proof("run_ahead_laws")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("vocabulary", "length"), [(2, 3), (3, 2), (5, 1)])
def test_a_promoted_turn_is_the_new_policys_own_whatever_it_learnt(laws, policies, tv, seed, vocabulary, length):
    found, claimed = laws.ahead_law(policies.policy(seed, vocabulary), length)
    assert tv(found, claimed) < EXACT


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("broken", ["trained", "anew", "picked"])
def test_a_fault_is_noticed(laws, policies, tv, seed, broken):
    """Controls: noise that was trained on, fresh noise after a mismatch, a choice by what was said."""
    found, claimed = laws.ahead_law(policies.policy(seed, 3), 2, broken)
    assert tv(found, claimed) > NOTICED


@pytest.mark.parametrize("seed", SEEDS)
def test_a_dialogue_made_ahead_is_the_new_policys_own_whatever_it_observed(laws, policies, tv, seed):
    found, claimed = laws.ahead_dialogue_law(policies.policy(seed, 2))
    assert tv(found, claimed) < EXACT


@pytest.mark.parametrize("seed", SEEDS)
def test_a_second_turn_judged_in_another_state_is_noticed(laws, policies, tv, seed):
    found, claimed = laws.ahead_dialogue_law(policies.policy(seed, 2), "elsewhere")
    assert tv(found, claimed) > NOTICED
