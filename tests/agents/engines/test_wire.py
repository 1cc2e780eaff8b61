import json
from typing import Any

import numpy as np
import pytest
from tables import table

from turntree.agents.engines.request_wire import (
    DRAFT,
    GIVEN,
    KEY,
    MOST,
    REVERIFIED,
    SEED,
    draft_of,
    flat,
    from_wire,
    given_of,
    is_reverified,
    noise_seed,
    request_entries,
    reverified_most,
    seed_of,
    state_of,
    to_wire,
    turn_draft_of,
    turn_state,
)
from turntree.agents.engines.sglang.wire import OURS, is_ours
from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.noise import exponential, shifted_seed

STATE = DialogueState(exact=(1 << 64) - 3, task="t/1", tools="search(é)", env="turntree/GSM8K-v0")


def test_a_state_survives_json_with_all_64_bits_of_its_hash():
    assert from_wire(json.loads(json.dumps(to_wire(STATE)))) == STATE


@pytest.mark.parametrize("values", table(__file__, "no_states"))
def test_what_is_no_state_is_refused_with_what_was_expected(values):
    with pytest.raises(ValueError, match="turntree_state"):
        from_wire(values)


@pytest.mark.parametrize("over_http", [False, True])
def test_entries_of_a_request_are_read_at_the_other_end(over_http: bool) -> None:
    # Over HTTP vLLM 0.24 takes strings and numbers only.
    entries = request_entries(state=STATE, seed=2**63 + 1, draft=(4, 5))
    if over_http:
        entries = json.loads(json.dumps(flat(entries)))
        assert all(isinstance(value, str | int) for value in entries.values())
    assert (state_of(entries), seed_of(entries), draft_of(entries)) == (STATE, 2**63 + 1, [4, 5])


@pytest.mark.parametrize("junk", ["x", "1e9", -1, 2**63, 1e400, float("nan"), [1], {"a": 1}, "[" * 100_000, [[1]]])
def test_no_unreadable_entry_raises_inside_an_engine(junk: Any) -> None:
    """Control: the front end's reader does raise."""
    entries = dict.fromkeys((KEY, SEED, DRAFT, GIVEN, MOST), junk) | {REVERIFIED: True}
    assert (given_of(entries), reverified_most(entries), is_reverified(entries)) == (0, 0, False)
    assert turn_state(entries, [1, 2]) == DialogueState.from_tokens([1, 2])
    assert turn_draft_of(entries, 9) in ([], [1])
    seed = noise_seed(entries)
    assert seed is None or 0 <= seed < 2**64
    if seed is None:
        with pytest.raises((TypeError, ValueError, OverflowError)):
            seed_of(entries)


@pytest.mark.parametrize("entries", [None, {}, {"max_thinking": 3}, request_entries()])
def test_a_request_of_others_brings_nothing(entries: dict[str, object] | None) -> None:
    assert state_of(entries) is seed_of(entries) is None
    assert draft_of(entries) == []
    assert not is_ours(entries)
    assert is_ours({OURS: True, **request_entries(state=STATE, seed=None, draft=())})


def test_seeds_are_taken_modulo_two_to_the_64() -> None:
    assert seed_of(request_entries(seed=-1)) == seed_of({SEED: 2**64 - 1}) == 2**64 - 1


@pytest.mark.parametrize("entries", [{SEED: "many"}, {DRAFT: ["x"]}])
def test_what_cannot_be_read_is_an_error(entries: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        (seed_of(entries), draft_of(entries))


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
