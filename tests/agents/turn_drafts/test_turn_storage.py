from dataclasses import replace

import numpy as np
import pytest

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TopLogprobs
from turntree.agents.turn_drafts.turn_storage import offer, stored_turn, within
from turntree.spec_tree import DialogueState

SAMPLING = Sampling(max_tokens=4)
TURN = Completion(
    token_ids=(5, 6, 7),
    logprobs=(-1.0, -1.0, -1.0),
    finish_reason=FinishReason.STOP,
    behaviour_logprobs=(-0.5, -0.5, -0.5),
    top=TopLogprobs(ids=np.zeros((3, 4), np.int32), logprobs=np.zeros((3, 4), np.float32)),
    weights_version=3,
)


def test_a_turn_is_stored_with_the_law_that_drew_it() -> None:
    stored = stored_turn(TURN, SAMPLING, seed=9, width=2)
    assert (stored.tokens.tolist(), stored.logprobs.tolist()) == ([5, 6, 7], [-0.5] * 3)
    assert stored.top_ids.shape == (3, 2)
    assert (stored.seed, stored.version, stored.token_limit, stored.stopped) == (9, 3, 4, True)
    assert stored_turn(replace(TURN, finish_reason=FinishReason.ABORT), SAMPLING, seed=1, width=2) is None
    assert stored_turn(replace(TURN, top=None), SAMPLING, seed=1, width=2) is None
    assert stored_turn(replace(TURN, top=None), SAMPLING, seed=1, width=0) is not None


@pytest.mark.parametrize(("room", "most"), [(4, 3), (3, 9)])
def test_a_turn_that_ended_for_want_of_context_is_offered_no_more_of_it(room: int, most: int) -> None:
    cut = stored_turn(replace(TURN, finish_reason=FinishReason.LENGTH), Sampling(max_tokens=room), seed=1, width=2)
    assert offer(cut, replace(SAMPLING, max_tokens=9)).most == most


def test_a_state_inside_a_turn_keeps_the_task_and_the_tools() -> None:
    state = DialogueState.from_tokens((1,), task="t", tools="c", env="e")
    inside = within(state, (1, 2))
    assert inside == DialogueState.from_tokens((1, 2), task="t", tools="c", env="e")
    assert within(None, (1,)) is None
