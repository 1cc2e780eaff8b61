"""Stored turns whose probability is known: the ratio rule, what it needs, and lenience."""

from __future__ import annotations

import numpy as np
import pytest

EXACT, NOTICED = 1e-12, 0.01
SEEDS = range(4)


@pytest.fixture(scope="module")
def laws(proof):
    return proof("stored_turn_laws")


def single(p):
    return {(token,): float(weight) for token, weight in enumerate(p)}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("vocabulary", "length"), [(2, 4), (3, 3), (5, 2)])
def test_the_ratio_rule_says_what_the_policy_says(laws, policies, tv, seed, vocabulary, length):
    p = policies.policy(seed, vocabulary)
    assert tv(laws.ratio_law(p, policies.near(p, seed), length), policies.plain(p, length)) < EXACT


@pytest.mark.parametrize("seed", SEEDS)
def test_it_does_so_however_far_the_old_policy_is(laws, policies, tv, seed):
    p, q = policies.policy(seed, 4), policies.policy(seed + 100, 4)
    assert tv(laws.ratio_law(p, q, 2), policies.plain(p, 2)) < EXACT


@pytest.mark.parametrize("top", range(5))
def test_the_top_of_the_old_law_is_enough(laws, policies, tv, top):
    """Tokens whose probability was not kept are rejected, and the residual makes up for them."""
    p = policies.policy(3, 4)
    assert tv(laws.ratio_law(p, policies.near(p, 3), 2, top=top), policies.plain(p, 2)) < EXACT


@pytest.mark.parametrize("broken", ["released", "threshold", "stale", "greedy"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_ratio_rule_with_a_fault_is_noticed(laws, policies, tv, seed, broken):
    """SPEC-RL as released (no residual); thresholds below 1; stale q; the residual's likeliest token."""
    p = policies.policy(seed, 4)
    assert tv(laws.ratio_law(p, policies.near(p, seed), 2, broken=broken), policies.plain(p, 2)) > NOTICED


def test_a_draft_that_was_picked_for_its_reward_is_noticed(laws, tv):
    p, q = np.array([0.4, 0.4, 0.2]), np.array([0.5, 0.3, 0.2])
    assert tv(laws.picked_law(p, q, (1, 0, 2), blind=True), single(p)) < EXACT
    wrong = laws.picked_law(p, q, (1, 0, 2), blind=False)
    assert [wrong[token,] for token in range(3)] == pytest.approx([0.36, 0.60, 0.04], abs=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_fresh_coins_are_needed_from_the_second_epoch_on(laws, tv, seed):
    versions = list(np.random.default_rng(seed).dirichlet(np.ones(4), size=4))
    assert tv(laws.epochs_law(versions, fixed=False), single(versions[-1])) < EXACT
    assert tv(laws.epochs_law(versions, fixed=True), single(versions[-1])) > NOTICED
    assert tv(laws.epochs_law(versions[:2], fixed=True), single(versions[1])) < EXACT, "one epoch does not show it"


@pytest.mark.parametrize("seed", SEEDS)
def test_a_stored_turn_that_is_used_twice_is_noticed(laws, policies, tv, seed):
    p = policies.policy(seed, 3)
    q, alone = policies.near(p, seed), policies.plain(p, 2)
    both = policies.product(alone, alone)
    assert tv(laws.two_uses_law(p, q, 2, stored_turns=2), both) < EXACT
    assert tv(laws.two_uses_law(p, q, 2, stored_turns=1), both) > NOTICED


@pytest.mark.parametrize("bias", [0.15, 0.3, 0.5, 2.0])
def test_what_lenience_emits_is_its_behaviour_law_and_not_the_policys(laws, policies, tv, bias):
    p = policies.policy(2, 4)
    q, lenience = policies.near(p, 2), float(np.exp(bias))
    emitted = laws.ratio_law(p, q, 3, lenience=lenience)
    assert tv(emitted, laws.lenient_formula(p, q, 3, lenience)) < EXACT
    assert tv(emitted, policies.plain(p, 3)) > NOTICED


@pytest.mark.parametrize("seed", SEEDS)
def test_only_point_mass_drafts_survive_training_on_the_draft(laws, policies, tv, seed):
    """The level C of the other rules: the policy that verifies knows the stored token."""
    p = policies.policy(seed, 4)(())
    q = policies.near(policies.policy(seed, 4), seed)(())
    assert tv(*laws.trained_law(p, q, 0.1, "point-mass")) < EXACT
    assert tv(*laws.trained_law(p, q, 0.1, "ratio")) > NOTICED
    assert tv(*laws.trained_law(p, q, 0.1, "replay")) > NOTICED
