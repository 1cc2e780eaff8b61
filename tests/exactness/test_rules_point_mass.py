"""Drafts that are a function of what is known leave the law of the turn as it is, jointly with all that was known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turntree.spec_tree.transforms import Transforms

EXACT, NOTICED = 1e-12, 0.01


@pytest.fixture(scope="module")
def laws(proof):
    return proof("point_mass_laws")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("vocabulary", "length"), [(2, 5), (3, 3), (4, 3), (6, 2)])
def test_sample_then_match_says_what_the_policy_says_with_any_trees(laws, policies, tv, seed, vocabulary, length):
    p = policies.policy(seed, vocabulary)
    assert tv(laws.tree_law(p, length, vocabulary, seed), policies.plain(p, length)) < EXACT


def test_a_tree_verified_with_the_laws_of_other_nodes_is_noticed(laws, policies, tv, monkeypatch):
    """The laws of a row's nodes shifted by one, as an engine with an index fault would have them."""
    p = policies.policy(1, 3)
    right = laws.sample_then_match

    def shifted(draft, draw, room, stops):
        return right(draft, lambda rows, places, depth: draw(rows, np.maximum(places - 1, 0), depth), room, stops)

    monkeypatch.setattr(laws, "sample_then_match", shifted)
    assert max(tv(laws.tree_law(p, 3, 3, seed), policies.plain(p, 3)) for seed in range(4)) > NOTICED


TRANSFORMS = [
    Transforms(temperature=0.7, top_k=2),
    Transforms(top_p=0.8, min_p=0.1, frequency_penalty=0.5),
    Transforms(temperature=1.3, top_k=3, top_p=0.95, repetition_penalty=1.4, presence_penalty=0.6),
    Transforms(temperature=0, repetition_penalty=1.4, frequency_penalty=0.5),
]


@pytest.mark.parametrize("transforms", TRANSFORMS)
def test_trees_are_verified_under_transforms_that_see_the_path(laws, policies, tv, transforms):
    for seed in range(3):
        plain = policies.plain(laws.transformed(seed, 3, transforms), 4)
        assert tv(laws.transformed_tree_law(seed, 4, 3, transforms), plain) < EXACT


@pytest.mark.parametrize("transforms", TRANSFORMS[1:])
def test_a_path_that_the_penalties_forget_is_noticed(laws, policies, tv, transforms):
    distances = []
    for seed in range(6):
        plain = policies.plain(laws.transformed(seed, 3, transforms), 4)
        distances.append(tv(laws.transformed_tree_law(seed, 4, 3, transforms, broken=True), plain))
    assert max(distances) > NOTICED


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), drafted=st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple))
def test_a_chain_by_coins_says_what_the_policy_says(laws, policies, tv, seed, drafted):
    p = policies.policy(seed, 4)
    assert tv(laws.chain_law(p, drafted), policies.plain(p, len(drafted))) < EXACT


@pytest.mark.parametrize("broken", ["resample", "duplicate", "greedy"])
@pytest.mark.parametrize("seed", range(4))
def test_a_chain_with_a_fault_is_noticed(laws, policies, tv, seed, broken):
    """Drawn from p after a rejection; two tries for children alike; the likeliest token after a rejection."""
    p = policies.policy(seed, 4)
    drafted = (int(p(()).argmax()), 0)
    assert tv(laws.chain_law(p, drafted, broken), policies.plain(p, 2)) > NOTICED


@pytest.mark.parametrize(("vocabulary", "length", "count"), [(2, 3, 2), (3, 2, 2), (2, 2, 3)])
def test_siblings_that_draft_from_each_other_are_independent(laws, policies, tv, vocabulary, length, count):
    p = policies.policy(4, vocabulary)
    alone = joint = policies.plain(p, length)
    for _ in range(count - 1):
        joint = policies.product(joint, alone)
    assert tv(laws.sibling_law(p, length, count), joint) < EXACT


def test_siblings_that_keep_each_others_tokens_as_draws_are_noticed_jointly_only(laws, policies, proof):
    """The ratio rule with q = p keeps a sibling's tokens always: right one by one, wrong together."""
    p, enumeration = policies.policy(4, 3), proof("enumeration")
    alone, joint = policies.plain(p, 2), laws.sibling_law(p, 2, 2, "known")
    assert enumeration.tv(enumeration.marginal(joint, lambda both: both[2:]), alone) < EXACT
    assert enumeration.tv(joint, policies.product(alone, alone)) > 0.1
