from __future__ import annotations

import numpy as np
import pytest

from turntree.agents.engines.request_wire import draft_of, seed_of, state_of
from turntree.agents.engines.sglang.wire import custom_params, is_ours, shifted_seed
from turntree.spec_tree import DialogueState
from turntree.spec_tree.noise import exponential


@pytest.mark.parametrize("seed", [0, 1, (1 << 63) + 5, (1 << 64) - 1, 12345678901234567])
@pytest.mark.parametrize("by", [0, 1, 17, 100_000])
def test_a_shifted_seed_has_the_noise_of_the_seed_further_on(seed, by):
    positions, tokens = np.arange(6)[:, None], np.arange(4)
    shifted = np.array(shifted_seed(seed, by), np.uint64)
    np.testing.assert_array_equal(
        exponential(shifted, positions + by, tokens), exponential(np.array(seed, np.uint64), positions, tokens)
    )
    if by:
        assert not np.array_equal(exponential(shifted, positions, tokens), exponential(shifted, positions + by, tokens))


def test_what_travels_comes_back():
    state = DialogueState(exact=9, task="t", env="e")
    entries = custom_params(state=state, seed=-1, draft=(4, 5))
    assert is_ours(entries)
    assert state_of(entries) == state
    assert seed_of(entries) == (1 << 64) - 1
    assert draft_of(entries) == [4, 5]


def test_a_request_of_others_brings_nothing():
    for entries in (None, {}, {"max_thinking": 3}):
        assert not is_ours(entries)
        assert state_of(entries) is None
        assert seed_of(entries) is None
        assert draft_of(entries) == []
