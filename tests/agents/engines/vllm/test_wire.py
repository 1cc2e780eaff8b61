from __future__ import annotations

import json

import pytest

from turntree.agents.engines.request_wire import DRAFT, SEED, draft_of, request_entries, seed_of
from turntree.agents.engines.vllm.wire import flat, state_of
from turntree.spec_tree import DialogueState

STATE = DialogueState.from_tokens((1, 2, 3), task="t", tools="u", env="v")


def test_what_is_sent_beside_a_request_is_read_at_the_other_end() -> None:
    entries = request_entries(state=STATE, seed=7, draft=(4, 5))
    assert (state_of(entries), seed_of(entries), draft_of(entries)) == (STATE, 7, [4, 5])


def test_over_http_everything_is_text_numbers_and_lists() -> None:
    entries = json.loads(json.dumps(flat(request_entries(state=STATE, seed=2**63 + 1, draft=(4, 5)))))
    assert not any(isinstance(value, dict) for value in entries.values())
    assert (state_of(entries), seed_of(entries), draft_of(entries)) == (STATE, 2**63 + 1, [4, 5])


@pytest.mark.parametrize("entries", [None, {}, request_entries()])
def test_a_request_that_brings_nothing_has_no_state_no_seed_and_no_guess(entries: dict[str, object] | None) -> None:
    assert (state_of(entries), seed_of(entries), draft_of(entries)) == (None, None, [])


def test_seeds_are_taken_modulo_two_to_the_64() -> None:
    assert seed_of(request_entries(seed=-1)) == seed_of({SEED: 2**64 - 1}) == 2**64 - 1


@pytest.mark.parametrize("entries", [{SEED: "many"}, {DRAFT: ["x"]}])
def test_what_cannot_be_read_is_an_error(entries: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        (seed_of(entries), draft_of(entries))
