from __future__ import annotations

import numpy as np
import pytest

from turntree.spec_tree.budget import DraftBudget


def drive(budget, steps, *, acceptance, per_token, base=20.0, rows=8, nodes=16, estimate=None, seed=0):
    """Run ``steps`` steps: drafts above the threshold are verified, ``acceptance(estimate)`` of them accepted,
    a step costs ``base + per_token * tokens`` milliseconds. Returns the last threshold."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        live = int(rng.integers(rows // 2, rows + 1))
        guesses = rng.random(nodes) if estimate is None else np.full(nodes, estimate)
        guesses = guesses[guesses >= budget.threshold]
        accepted = rng.random(len(guesses)) < acceptance(guesses)
        tokens = live + len(guesses)
        budget.observe(
            estimates=guesses.astype(np.float32),
            accepted=accepted,
            tokens=tokens,
            seconds=(base + per_token * tokens) / 1e3,
            emitted=live + int(accepted.sum()),
        )
    return budget.threshold


def test_before_anything_is_measured_the_floor_holds():
    assert DraftBudget(0.3).threshold == 0.3


def test_free_tokens_are_all_verified():
    assert drive(DraftBudget(0.05), 200, acceptance=lambda g: g, per_token=0.0) == 0.05


def test_the_needed_acceptance_is_marginal_cost_over_mean_cost_of_a_token():
    budget = DraftBudget(0.0)
    drive(budget, 300, acceptance=lambda g: g, per_token=1.0, base=20.0)
    # b E / T with b = 1 ms; E and T follow from what the threshold lets through
    assert budget.needed == pytest.approx(0.35, abs=0.12)
    assert 0.2 <= budget.threshold <= 0.6


def test_dear_tokens_leave_only_likely_drafts():
    cheap = drive(DraftBudget(0.0), 300, acceptance=lambda g: g, per_token=0.2)
    dear = drive(DraftBudget(0.0), 300, acceptance=lambda g: g, per_token=5.0)
    assert cheap < 0.25 < dear


def test_a_store_that_promises_too_much_is_found_out():
    budget = DraftBudget(0.0)
    assert drive(budget, 300, acceptance=lambda g: 0.02, per_token=2.0) > 0.9


def test_where_every_draft_loses_nothing_is_drafted():
    budget = DraftBudget(0.0)
    drive(budget, 60, acceptance=lambda g: 0.0, per_token=4.0, estimate=0.97)
    none = {"acceptance": lambda g: 0.0, "per_token": 4.0, "estimate": 0.97}
    silent = sum(drive(budget, 1, **none, seed=s) > 1 for s in range(40))
    assert silent > 20


def test_what_was_given_up_is_tried_again_when_the_policy_has_sharpened():
    budget = DraftBudget(0.0)
    assert drive(budget, 200, acceptance=lambda g: 0.0, per_token=2.0) > 0.9
    assert drive(budget, 600, acceptance=lambda g: g, per_token=2.0) < 0.7


def test_one_slow_step_does_not_count_as_a_cost_of_tokens():
    budget = DraftBudget(0.0)
    drive(budget, 100, acceptance=lambda g: g, per_token=0.5)
    before = budget.needed
    budget.observe(estimates=np.ones(16, np.float32), accepted=np.ones(16, bool), tokens=24, seconds=30.0, emitted=24)
    assert budget.needed == pytest.approx(before, abs=0.25)
