"""Seeded replay: plain seeded decoding, token for token, and so the policy's law."""

from __future__ import annotations

import numpy as np
import pytest

EXACT, NOTICED = 1e-12, 0.01


@pytest.fixture(scope="module")
def draws(proof):
    return proof("rule_draws")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("vocabulary", "length"), [(2, 4), (3, 3), (5, 2)])
def test_a_replay_says_what_the_policy_says_over_all_clocks(proof, seed, vocabulary, length):
    laws, policies, enumeration = proof("stored_turn_laws"), proof("policies"), proof("enumeration")
    p = policies.policy(seed, vocabulary)
    q = policies.near(p, seed)
    both = laws.replay_law(p, q, length)
    new = enumeration.marginal(both, lambda pair: pair[length:])
    assert enumeration.tv(new, policies.plain(p, length)) < EXACT
    assert enumeration.tv(new, policies.plain(q, length)) > NOTICED


def test_a_replay_and_plain_decoding_agree_token_for_token(draws):
    seeds = np.arange(3000) * 7 - 5000
    p = draws.table(1, 4, 5)
    for drift in (0.0, 0.5, 3.0):
        stored = draws.plain(draws.drifted(p, 2, drift), seeds)
        assert (draws.replay(p, stored, seeds) == draws.plain(p, seeds)).all()


def test_noise_that_is_keyed_by_the_step_is_noticed(draws):
    seeds = np.arange(3000)
    p = draws.table(1, 4, 5)
    stored = draws.plain(draws.drifted(p, 2), seeds)
    replayed = draws.replay(p, stored, seeds, keyed_by_step=True)
    assert (replayed != draws.plain(p, seeds)).any(1).mean() > NOTICED
