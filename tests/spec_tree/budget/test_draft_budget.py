import numpy as np
import pytest
from combinations import every_third
from hypothesis import given
from hypothesis import strategies as st
from simulated_engine import FLAT, SHARP, Fixed, Policy, simulate, throughput

from turntree.spec_tree.budget import draft_budget as budget_module
from turntree.spec_tree.budget.draft_budget import DraftBudget
from turntree.spec_tree.budget.step_cost import StepCost, rising

SIZES = [(8, 8 + extra) for extra in (0, 4, 12, 30, 60, 120)]


def learnt(seconds, sizes=SIZES, rounds=30, noise=0.0, seed=0):
    rng = np.random.default_rng(seed)
    cost = StepCost()
    for _ in range(rounds):
        for rows, tokens in sizes:
            cost.observe(rows, tokens, seconds(rows, tokens) * float(np.exp(noise * rng.standard_normal())))
    return cost


@pytest.mark.parametrize(
    "truth",
    [
        *(lambda b, m: 0.02, lambda b, m: 0.01 + 0.001 * m),
        *(lambda b, m: 0.01 * max(1, m / 32), lambda b, m: 0.01 * -(-m // 32)),
    ],
)
def test_any_rising_cost_is_learnt_where_it_was_measured(truth):
    cost = learnt(truth, noise=0.05)
    for rows, tokens in SIZES:
        assert cost.seconds(rows, [tokens])[0] == pytest.approx(truth(rows, tokens), rel=0.08)


def test_costs_of_requests_and_tokens_are_told_apart_and_rise_beyond_what_was_measured():
    def truth(rows, tokens):
        return 0.01 + 0.004 * rows + 0.0005 * tokens

    cost = learnt(truth, [(b, b + n) for b in (2, 4, 8, 16) for n in (0, 8, 24)], noise=0.03)
    few, many = cost.seconds(2, [32])[0], cost.seconds(16, [32])[0]
    assert few == pytest.approx(truth(2, 32), rel=0.12)
    assert many == pytest.approx(truth(16, 32), rel=0.12)
    cost = learnt(lambda b, m: 0.01 + 0.001 * m)
    assert cost.seconds(8, [1000])[0] == pytest.approx(1.01, rel=0.15)
    assert rising(np.array([1.0, 2.0, 3.0]), np.ones(3)).tolist() == [1, 2, 3]
    assert rising(np.array([3.0, 1.0]), np.array([3.0, 1.0])).tolist() == [2.5, 2.5]


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


THRESHOLDS = (0.05, 0.3, 0.45, 0.6, 0.75, 0.9, 2.0)
WARM = 200
LIAR = Policy((8.0, 1.0), lambda estimate: np.full_like(estimate, 0.02))
MODEST = Policy((3.0, 3.0), np.sqrt)
MISSED = Policy((1.0, 30.0), lambda estimate: np.full_like(estimate, 0.02))


#: seconds of a step
COSTS = {
    "free": lambda rows, tokens: 0.02,
    "linear": lambda rows, tokens: 0.02 + 0.001 * tokens,
    "small cpu": lambda rows, tokens: 0.008 + 0.001 * tokens,
    "steep": lambda rows, tokens: 0.002 + 0.001 * tokens,
    "accelerator": lambda rows, tokens: 0.01 * max(1.0, tokens / 128),
    "stairs": lambda rows, tokens: 0.02 * -(-tokens // 32),
    "dear rows": lambda rows, tokens: 0.01 + 0.002 * rows + 0.0002 * tokens,
}
NOISY = {"noise": 0.05, "hiccups": 0.01}


@pytest.mark.parametrize(
    ("cost", "policy"), every_third([name for name in COSTS if name != "small cpu"], [SHARP, FLAT, MODEST])
)
def test_a_warm_budget_reaches_the_best_fixed_threshold(cost, policy):
    runs = {at: simulate(Fixed(at), COSTS[cost], policy, steps=500, **NOISY) for at in THRESHOLDS}
    best = max(throughput(run, WARM) for run in runs.values())
    own = simulate(DraftBudget(0.05), COSTS[cost], policy, steps=500, **NOISY)
    assert throughput(own, WARM) >= 0.95 * best


@pytest.mark.parametrize(
    ("cost", "policy", "rows"), every_third(["linear", "steep", "accelerator", "stairs"], [LIAR, MISSED], [1, 4, 64])
)
def test_where_drafts_lose_almost_nothing_is_lost(cost, policy, rows):
    without = simulate(Fixed(2.0), COSTS[cost], policy, rows=rows, steps=500, **NOISY)
    own = simulate(DraftBudget(0.05), COSTS[cost], policy, rows=rows, steps=500, **NOISY)
    assert throughput(own, WARM) >= 0.98 * throughput(without, WARM)
    assert throughput(own, 0, 65) >= 0.93 * throughput(without, 0, 65), "the first steps are careful"


def test_the_careless_threshold_loses_where_the_budget_does_not():
    """Control of the test above: the same drafts, all verified."""
    without = simulate(Fixed(2.0), COSTS["linear"], LIAR, steps=300)
    assert throughput(simulate(Fixed(0.4), COSTS["linear"], LIAR, steps=300)) < 0.8 * throughput(without)


@pytest.mark.parametrize(
    ("cost", "early"), every_third(["small cpu", "linear", "accelerator", "dear rows"], [FLAT, LIAR, MISSED])
)
def test_a_policy_that_sharpens_is_noticed(cost, early):
    policy = lambda step: early if step < 200 else SHARP  # noqa: E731
    own = simulate(DraftBudget(0.05), COSTS[cost], policy, steps=500, **NOISY)
    best = max(throughput(simulate(Fixed(at), COSTS[cost], policy, steps=500, **NOISY), 320) for at in THRESHOLDS)
    assert throughput(own, 320) >= 0.93 * best


def test_without_trials_a_policy_that_sharpens_is_missed(monkeypatch):
    """Control of the test above."""
    monkeypatch.setattr(budget_module, "PROBE_PAUSE", 10**9)
    monkeypatch.setattr(budget_module, "IDLE", 1.0)
    policy = lambda step: LIAR if step < 200 else SHARP  # noqa: E731
    own = simulate(DraftBudget(0.05), COSTS["small cpu"], policy, steps=320, **NOISY)
    assert own[200:, 2].sum() == 0


def test_a_machine_that_gets_busy_is_noticed():
    now = [0]

    def shared(rows, tokens):
        now[0] += 1
        return 0.02 if now[0] < 250 else 0.005 + 0.004 * tokens

    own = simulate(DraftBudget(0.05), shared, FLAT, steps=700)
    assert own[100:250, 2].mean() > 5
    assert own[500:, 2].mean() < 1.5


@pytest.mark.parametrize("rows", [1, 16, 200])
def test_the_first_steps_draft_little_and_every_other_one_nothing(rows):
    budget = DraftBudget(0.3)
    asked = []
    for _ in range(8):
        asked.append(budget.allow(rows))
        budget.observe(rows=rows, tokens=rows, estimates=np.zeros(0, np.float32), accepted=np.zeros(0, bool), seconds=1)
    assert [allowed.nodes for allowed in asked] == [max(2, rows // 2), 0] * 4
    assert asked[0].min_probability == 0.3


def test_more_is_drafted_only_as_drafts_are_accepted():
    run = simulate(DraftBudget(0.05), COSTS["free"], LIAR, rows=64, steps=60)
    sharp = simulate(DraftBudget(0.05), COSTS["free"], SHARP, rows=64, steps=60)
    assert run[:30, 2].max() <= 40
    assert sharp[20:30, 2].mean() > 200


class Watched:
    """Records for each step whether the budget rested and what it allowed."""

    def __init__(self, budget):
        self._budget, self.observe, self.rested, self.allowed = budget, budget.observe, [], []

    def allow(self, rows):
        self.rested.append(self._budget.rests(rows))
        self.allowed.append(self._budget.allow(rows))
        return self.allowed[-1]


def test_where_drafts_lose_most_steps_take_no_decision_and_none_of_them_drafts():
    watched = Watched(DraftBudget(0.05))
    run = simulate(watched, COSTS["steep"], LIAR, steps=600, **NOISY)
    rested = np.array(watched.rested)
    full = np.arange(600) % 60 < 30  # the number of requests stays the same
    assert not rested[: WARM // 10].any(), "what a step costs is learnt first"
    assert 0.6 < rested[WARM:][full[WARM:]].mean() <= 0.75
    assert run[rested, 2].sum() == 0


def test_a_rest_ends_where_something_is_to_be_tried(monkeypatch):
    nothing = Policy((1.0, 2000.0), np.zeros_like)

    def first_draft(begin):
        policy = lambda step: nothing if step < begin else SHARP  # noqa: E731
        run = simulate(DraftBudget(0.05), COSTS["linear"], policy, rows=1, steps=begin + 30, noise=0.05)
        return np.flatnonzero(run[begin:, 2])[0]

    firsts = []
    for rest in (1, budget_module.REST):
        monkeypatch.setattr(budget_module, "REST", rest)
        firsts.append(np.mean([first_draft(begin) for begin in range(24, 40)]))
    without, own = firsts
    assert own <= without + 0.5


def test_where_drafts_pay_no_step_goes_without_a_decision_nor_does_one_of_other_requests():
    watched = Watched(DraftBudget(0.4))
    simulate(watched, COSTS["free"], SHARP, steps=600, **NOISY)
    assert not any(watched.rested)
    assert min(allowed.min_probability for allowed in watched.allowed) == 0.4, "nothing below the floor is asked for"
    idle = DraftBudget(0.05)
    simulate(idle, COSTS["steep"], LIAR, steps=30)
    while not idle.rests(16):
        simulate(idle, COSTS["steep"], LIAR, steps=1)
    assert not idle.rests(15)
    idle.allow(15)
    assert not idle.rests(16), "a decision for other requests ends the rest"


#: seconds that no function of the tokens describes: any draft slows the step, as outside of a graph
OVERHEAD = {
    "any draft": lambda rows, tokens: (0.01 + 0.0002 * rows) * (1.5 if tokens > rows else 1.0),
    "any draft, dear": lambda rows, tokens: (0.01 + 0.0002 * rows) * (3.0 if tokens > rows else 1.0),
}
SELDOM = lambda step: SHARP if step % 40 < 6 else LIAR  # noqa: E731


def against_none(cost, policy, rows, steps):
    runs = [
        simulate(budget, cost, policy, rows=rows, steps=steps, noise=0.1) for budget in (DraftBudget(0.05), Fixed(2))
    ]
    return throughput(runs[0]) / throughput(runs[1])


@pytest.mark.parametrize("rows", [4, 32])
@pytest.mark.parametrize("policy", [FLAT, SELDOM])
@pytest.mark.parametrize("cost", OVERHEAD)
def test_what_drafts_lose_against_the_engines_own_steps_is_bounded_even_where_costs_are_learnt_wrongly(
    cost, policy, rows
):
    assert against_none(OVERHEAD[cost], policy, rows, 1200) >= 0.965


def test_without_an_account_it_is_not(monkeypatch):
    """Control of the test above."""
    monkeypatch.setattr("turntree.spec_tree.budget.step_account.LOSS_SHARE", 1e9)
    assert against_none(OVERHEAD["any draft"], FLAT, 32, 600) < 0.93


@pytest.mark.parametrize("most", [0, 3, 1000])
def test_no_step_drafts_more_than_the_engine_takes_nor_more_because_it_could(most):
    for steps in (0, WARM + 2):
        bounded, free_to = DraftBudget(0.05), DraftBudget(0.05)
        for budget in (bounded, free_to):
            simulate(budget, COSTS["free"], SHARP, steps=steps)
        assert bounded.allow(16, most=most).nodes == min(most, free_to.allow(16).nodes)
