from types import SimpleNamespace
from typing import Any

import pytest

from turntree.agents.engines.request_wire import MOST, request_entries
from turntree.agents.engines.sglang.settings import SglangSettings
from turntree.agents.engines.sglang.wire import OURS
from turntree.agents.engines.sglang.worker.drafter import TreeDrafter, reverified_tokens
from turntree.spec_tree import DialogueState, SpecForest

PROMPT, DRAFT = [1, 2, 3], [10, 11, 12, 13, 14, 15]
STATE = DialogueState(exact=77, task="t")


def request(drawn: list[int] | None = None, *, most: int = 100, **more: Any) -> Any:
    reverified = drawn is not None
    entries = {OURS: True, **request_entries(state=STATE, seed=1, given=len(DRAFT), reverified=reverified)} | (
        {MOST: most} if reverified else {}
    )
    rows = {"input_top_logprobs_idx": [None, *([token, token] for token in drawn or ())]}
    values = {
        "rid": "a",
        "origin_input_ids": [*PROMPT, *DRAFT],
        "output_ids": [9],
        "sampling_params": SimpleNamespace(custom_params=entries, stop_token_ids={8}, max_new_tokens=4),
        "finished_reason": SimpleNamespace(to_json=lambda: {"type": "length"}),
        **rows,
    }
    return SimpleNamespace(**{**values, **more})


@pytest.mark.parametrize(
    ("drawn", "most", "turn"),
    [
        (DRAFT, 6, DRAFT),  # as long as it may be
        (DRAFT, 7, []),  # goes on
        ([10, 11, 8, 5, 5, 5], 100, [10, 11, 8]),  # stops where it differs
        ([10, 11, 7, 8, 5, 5], 100, []),  # what is drawn after a wrong token is no part of it
        ([10, 11, 7, 5, 5, 5], 3, [10, 11, 7]),
        (DRAFT[:4], 4, []),  # not all was drawn
    ],
)
def test_a_reverified_request_is_a_turn_if_its_tokens_end_it(drawn: list[int], most: int, turn: list[int]) -> None:
    assert reverified_tokens(request(drawn, most=most)) == turn


def test_two_most_probable_tokens_are_no_draw() -> None:
    others = request(DRAFT, most=6, input_top_logprobs_idx=[None, *([token, 0] for token in DRAFT)])
    assert reverified_tokens(others) == []


def learnt(*requests: Any, decoded: bool = False) -> tuple[int, int, int]:
    drafter = TreeDrafter(SglangSettings(adaptive=False), SpecForest(), 8)
    for each in requests:
        reason, each.finished_reason = each.finished_reason, None
        drafter.prompts([each])
        if decoded:
            drafter.propose([each])
            each.output_ids.append(8)
        each.finished_reason = reason
        if decoded:
            drafter.settle()
    drafter.idle()
    stats = drafter.forest.stats()
    return stats.rollouts, stats.tokens, stats.live


def test_the_store_learns_a_turn_with_the_tokens_that_came_with_the_prompt() -> None:
    assert learnt(request(DRAFT, most=6)) == (1, 6, 0)
    assert learnt(request(DRAFT)) == (0, 0, 0)
    assert learnt(request()) == (1, 7, 0)
    assert learnt(request(), decoded=True) == (1, 8, 0)
    assert learnt(request(DRAFT, most=6), request(DRAFT), request(rid="b")) == (2, 13, 0)
    aborted = SimpleNamespace(to_json=lambda: {"type": "abort"})
    assert learnt(request(finished_reason=aborted), request(DRAFT, most=6, finished_reason=aborted)) == (0, 0, 0)
