"""The verification rules: each row of the exactness report holds, and so do policies and turns of other sizes.

A row has a rule and a control, the rule with a fault: the rule must sample from the policy, the control must not.
Further tests check the foundations: the enumeration sees every path, every region of a coin and every order of clocks,
and the chi-square test has the power that the rows state.
"""

from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
from benchmark_modules import benchmark_module
from combinations import every_third
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table

from turntree.spec_tree.rules.noise import exponential
from turntree.spec_tree.rules.transforms import Transforms
from turntree.spec_tree.rules.verify import race

EXACT, NOTICED = 1e-12, 0.01


@pytest.fixture(scope="module")
def rules() -> ModuleType:
    # The rows' module also imports all distributions that they compare.
    return import_module("laws.rule_rows")


@pytest.fixture(scope="module")
def claims() -> ModuleType:
    return import_module("laws.claims")


@pytest.mark.parametrize("policies", [2, pytest.param(4, marks=pytest.mark.release)])
@pytest.mark.parametrize(("source", "arguments", "count"), table(__file__, "claims"))
def test_every_claim_holds_and_its_control_is_noticed(rules, monkeypatch, source, arguments, count, policies):
    monkeypatch.setitem(rules.enumerated.__globals__, "SEEDS", range(policies))
    rows = list(getattr(rules, source)(*arguments))
    assert [row for row in rows if not row.holds] == []
    assert len(rows) == count


@pytest.mark.parametrize(
    ("of_rule", "of_control", "holds"), [(1e-15, 0.1, True), (1e-9, 0.1, False), (1e-15, 0.001, False)]
)
def test_a_row_holds_if_the_rule_is_exact_and_its_control_is_noticed(claims, of_rule, of_control, holds):
    row = claims.enumerated("rule", "A", lambda seed: of_rule, "control", lambda seed: of_control)
    assert row.holds is holds


def test_one_bad_policy_is_enough(claims):
    bad = max(claims.SEEDS)
    assert not claims.enumerated("rule", "A", lambda seed: float(seed == bad), "control", lambda seed: 1.0).holds
    assert not claims.enumerated("rule", "A", lambda seed: 0.0, "control", lambda seed: float(seed != bad)).holds


@pytest.mark.release
def test_every_row_of_the_report_holds_those_of_engines_too(tmp_path, monkeypatch):
    report = tmp_path / "exactness.json"
    monkeypatch.setattr("sys.argv", ["exactness.py", "--json", str(report)])
    assert benchmark_module("exactness").main() == 0
    assert report.read_text().count('"holds": true') > 20


RULES = ("any trees", "ratio", "ratio, an old policy far away", "replay", "run ahead")


@pytest.mark.parametrize(("rule", "size"), every_third(RULES, [(2, 4), (3, 3), (4, 2), (6, 2)]))
def test_a_rule_says_what_the_policy_says_in_turns_of_all_sizes(rules, rule, size):
    vocabulary, length = size
    for seed in range(4):
        p = rules.policy(seed, vocabulary)
        q, claimed = rules.near(p, seed), rules.plain(p, length)
        if rule == "any trees":
            found = rules.tree_law(p, length, vocabulary, seed)
        elif rule == "replay":
            found = rules.marginal(rules.replay_law(p, q, length), lambda both: both[length:])
        elif rule == "run ahead":
            found, claimed = rules.ahead_law(p, min(length, 3))
        else:
            found = rules.ratio_law(p, q if rule == "ratio" else rules.policy(seed + 100, vocabulary), length)
        assert rules.tv(found, claimed) < EXACT


def test_a_tree_verified_with_the_laws_of_other_nodes_is_noticed(rules, monkeypatch):
    """Control: distributions shifted by one node, as by an index fault in an engine."""
    p, laws = rules.policy(1, 3), import_module("laws.point_mass")
    right = laws.sample_then_match

    def shifted(draft, draw, room, stops):
        return right(draft, lambda rows, nodes, depth: draw(rows, np.maximum(nodes - 1, 0), depth), room, stops)

    monkeypatch.setattr(laws, "sample_then_match", shifted)
    assert max(rules.tv(rules.tree_law(p, 3, 3, seed), rules.plain(p, 3)) for seed in range(4)) > NOTICED


@pytest.mark.parametrize("asked", table(__file__, "transforms"))
def test_trees_are_verified_under_transforms_and_a_path_that_the_penalties_forget_is_noticed(rules, asked):
    transforms = Transforms(**asked)
    plain = [rules.plain(rules.transformed(seed, 3, transforms), 4) for seed in range(6)]
    right, broken = (
        max(rules.tv(rules.transformed_tree_law(i, 4, 3, transforms, broken=b), law) for i, law in enumerate(plain))
        for b in (False, True)
    )
    assert right < EXACT
    if transforms.repetition_penalty != 1 or transforms.frequency_penalty:
        assert broken > NOTICED


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), drafted=st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple))
def test_a_chain_by_coins_says_what_the_policy_says_whatever_was_drafted(rules, seed, drafted):
    p = rules.policy(seed, 4)
    assert rules.tv(rules.chain_law(p, drafted), rules.plain(p, len(drafted))) < EXACT


@pytest.mark.parametrize(("vocabulary", "length", "count"), [(2, 3, 2), (3, 2, 2), (2, 2, 3)])
def test_siblings_that_draft_from_each_other_are_independent(rules, vocabulary, length, count):
    p = rules.policy(4, vocabulary)
    alone = joint = rules.plain(p, length)
    for _ in range(count - 1):
        joint = rules.product(joint, alone)
    assert rules.tv(rules.sibling_law(p, length, count), joint) < EXACT


def test_siblings_that_keep_each_others_tokens_as_draws_are_noticed_jointly_only(rules):
    """Control: the ratio rule with q = p always accepts a sibling's token: right marginally, wrong jointly."""
    p = rules.policy(4, 3)
    alone, joint = rules.plain(p, 2), rules.sibling_law(p, 2, 2, "known")
    assert rules.tv(rules.marginal(joint, lambda both: both[2:]), alone) < EXACT
    assert rules.tv(joint, rules.product(alone, alone)) > 0.1


def test_an_old_law_of_which_nothing_is_kept_and_lenience_that_is_large_have_their_laws(rules):
    p = rules.policy(3, 4)
    q, lenience = rules.near(p, 3), float(np.exp(2.0))
    assert rules.tv(rules.ratio_law(p, q, 2, top=0), rules.plain(p, 2)) < EXACT
    emitted = rules.ratio_law(p, q, 3, lenience=lenience)
    assert rules.tv(emitted, rules.lenient_formula(p, q, 3, lenience)) < EXACT
    assert rules.tv(emitted, rules.plain(p, 3)) > NOTICED


@pytest.fixture(scope="module")
def enumeration():
    return import_module("laws.enumeration")


def test_every_path_is_run_with_its_probability_and_thresholds_are_found_to_the_last_bit(enumeration):
    def run(choose):
        first = choose([0.25, 0.0, 0.75])
        return first if first else (first, choose([0.5, 0.5]))

    assert enumeration.outcomes(run) == {(0, 0): 0.125, (0, 1): 0.125, 2: 0.75}
    assert enumeration.regions(lambda coins: coins < 2) == [(1.0, 0.5, 1)]
    assert enumeration.tv({1: 1.0}, {2: 1.0}) == 1.0
    assert enumeration.tv({1: 0.5, 2: 0.5}, {1: 0.75, 3: 0.25}) == 0.5
    steps = np.array([1e-9, 0.3, 0.3 + 1e-12, 0.99999])
    found = enumeration.regions(lambda coins: (coins[:, None] < steps).sum(-1))
    assert [region.decision for region in found] == [4, 3, 2, 1, 0]
    assert [region.probability for region in found] == pytest.approx(np.diff([0, *steps, 1]), abs=1e-16)
    for region in found:
        assert (region.coin < steps).sum() == region.decision


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


@pytest.fixture(scope="module")
def draws():
    return import_module("laws.rule_draws")


def test_plain_draws_have_the_policys_law_and_those_of_another_policy_are_noticed(draws):
    p, seeds = draws.table(0, 3, 3), np.arange(60_000)
    assert draws.power(len(seeds), len(p.cells), 0.02, 1e-3) > 0.999
    assert draws.chi_square(draws.plain(p, seeds), p.cells).p_value > 1e-3
    assert draws.chi_square(draws.plain(draws.drifted(p, 3, 0.15), seeds), p.cells).p_value < 1e-9


def test_the_power_is_what_repeated_tests_find_and_cells_with_few_expected_are_merged(draws):
    """Draw 300 times at total variation 0.02, with the difference spread as in the bound."""
    rng = np.random.default_rng(0)
    law = np.full(10, 0.1)
    other = law * (1 + 0.04 * np.resize([1, -1], 10))
    sizes, found = 4000, 0
    for _ in range(300):
        turns = rng.choice(10, size=(sizes, 1), p=other)
        found += draws.chi_square(turns, law).p_value < 0.05
    assert found / 300 == pytest.approx(draws.power(sizes, 10, 0.02, 0.05), abs=4 * np.sqrt(0.25 / 300))
    law = np.array([0.5, 0.4, 0.0994, 0.0003, 0.0003])
    turns = np.repeat(np.arange(5), [5000, 4000, 995, 3, 2])[:, None]
    assert draws.chi_square(turns, law).cells == 4
