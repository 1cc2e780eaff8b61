"""Two turns with a random observation between, where the second dialogue reuses the first."""

from __future__ import annotations

import pytest

EXACT, NOTICED = 1e-12, 0.01


@pytest.fixture(scope="module")
def laws(proof):
    return proof("dialogue_laws")


def dialogues(proof, laws, seed):
    """The two policies, and what their dialogues are without reuse."""
    policies, outcomes = proof("policies"), proof("enumeration").outcomes
    p = policies.policy(seed, 2)
    q = policies.near(p, seed)
    return p, q, outcomes(lambda choose: laws.dialogue(choose, p, 2)), outcomes(lambda c: laws.dialogue(c, q, 2))


@pytest.mark.parametrize("seed", range(3))
def test_drafts_from_an_earlier_dialogue_leave_the_new_one_independent_of_it(proof, laws, seed):
    p, q, now, then = dialogues(proof, laws, seed)
    independent = proof("policies").product(then, now)
    assert proof("enumeration").tv(laws.two_turn_law(p, q, 2, "match"), independent) < EXACT


@pytest.mark.parametrize("seed", range(3))
def test_reuse_crosses_an_observation_that_is_reproduced_and_no_other(proof, laws, seed):
    p, q, now, _ = dialogues(proof, laws, seed)
    enumeration = proof("enumeration")
    distance = {
        rule: enumeration.tv(enumeration.marginal(laws.two_turn_law(p, q, 2, rule), lambda both: both[5:]), now)
        for rule in ("ratio", "elsewhere")
    }
    assert distance["ratio"] < EXACT
    assert distance["elsewhere"] > NOTICED
