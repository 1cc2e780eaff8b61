from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tables import table

from turntree.agents.engines.sglang.worker.seen_request import SeenRequest

PROMPT = [1, 2, 3]


def request(said: list[int], *, limit: int | None = 10, **sampling: Any) -> SimpleNamespace:
    params = {"max_new_tokens": limit, "stop_token_ids": None, "custom_params": {"turntree": True}, **sampling}
    tokens = {"origin_input_ids": PROMPT, "output_ids": said, "eos_token_ids": {9}}
    going_on = {"finished_reason": None, "finished_len": None}
    return SimpleNamespace(rid="r", sampling_params=SimpleNamespace(**params), **tokens, **going_on)


def cached(sampled: int) -> int:
    """Tokens with keys and values after ``sampled`` tokens of the turn."""
    return len(PROMPT) + sampled - 1


@pytest.mark.parametrize(
    ("served", "heard", "turn"),
    [*table(__file__, "heard"), ({"said": [5], "custom_params": None}, [6, 9, 8], [5, 6, 9])],  # and of others
)
def test_what_is_heard_follows_what_the_request_knows_up_to_the_turns_end(served, heard, turn):
    seen = SeenRequest(request(**served))
    seen.hear(heard, cached(4))
    assert seen.output_ids == turn


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
