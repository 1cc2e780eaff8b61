from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from turntree.agents.engines.sglang.seen_request import SeenRequest

PROMPT = [1, 2, 3]


def request(said: list[int], *, limit: int | None = 10, **sampling: Any) -> SimpleNamespace:
    params = {"max_new_tokens": limit, "stop_token_ids": None, "custom_params": {"turntree": True}, **sampling}
    return SimpleNamespace(
        rid="r",
        origin_input_ids=PROMPT,
        output_ids=said,
        sampling_params=SimpleNamespace(**params),
        eos_token_ids={9},
        finished_reason=None,
        finished_len=None,
    )


def cached(sampled: int) -> int:
    """Tokens with keys and values after ``sampled`` tokens of the turn."""
    return len(PROMPT) + sampled - 1


def test_what_the_request_does_not_know_yet_follows_what_it_knows():
    seen = SeenRequest(request([5, 6]))
    seen.hear([7, 8], cached(4))
    assert seen.output_ids == [5, 6, 7, 8]


def test_what_the_request_was_told_meanwhile_is_not_said_twice():
    """A pass for prompts ran between: near the limit the turn would otherwise seem to end in another token."""
    seen = SeenRequest(request([5, 6, 7, 8], limit=5))
    seen.hear([6, 7, 8], cached(4))
    assert seen.output_ids == [5, 6, 7, 8]


def test_tokens_behind_a_stop_token_or_the_limit_are_not_the_turns():
    seen = SeenRequest(request([5], stop_token_ids={7}))
    seen.hear([6, 7, 8], cached(4))
    assert seen.output_ids == [5, 6, 7]
    short = SeenRequest(request([5], limit=2))
    short.hear([6, 7, 8], cached(4))
    assert short.output_ids == [5, 6]


def test_the_models_end_token_ends_only_the_requests_of_others():
    ours, theirs = request([5]), request([5], custom_params=None)
    for served, wanted in ((ours, [5, 9, 8]), (theirs, [5, 9])):
        seen = SeenRequest(served)
        seen.hear([9, 8], cached(3))
        assert seen.output_ids == wanted


def test_a_turn_that_has_ended_is_what_the_scheduler_says():
    served = request([5, 6, 7])
    seen = SeenRequest(served)
    served.finished_reason, served.finished_len = "stop", 2
    seen.hear([8], cached(9))
    assert seen.output_ids == [5, 6]


def test_a_request_that_left_the_batch_knows_what_it_said():
    served = request([5])
    seen = SeenRequest(served)
    seen.hear([6], cached(2))
    seen.rest()
    served.output_ids = [5, 6]
    assert seen.output_ids == [5, 6]


def test_tokens_that_nobody_handed_over_are_missed():
    seen = SeenRequest(request([5]))
    with pytest.raises(RuntimeError, match=r"2 tokens of request r .* 1 were handed"):
        seen.hear([6], cached(3))
