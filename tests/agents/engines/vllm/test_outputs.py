from __future__ import annotations

import numpy as np
import pytest

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, Sampling
from turntree.agents.engines.readings import Readings
from turntree.agents.engines.vllm.outputs import completion

TOKENS = (3, 1)
READ = Readings(np.array([-2.0, -0.5]), np.array([[4, 3], [1, 0]], np.int32), np.array([[-0.25, -2.0], [-0.5, -1.5]]))


def made(sampling: Sampling, finish: str | None = "stop") -> Completion:
    return completion(TOKENS, READ, finish, sampling, draft=DraftStats(drafted=3), cached_tokens=2, weights_version=1)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("stop", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("abort", FinishReason.ABORT),
        (None, FinishReason.ABORT),
    ],
)
def test_why_a_turn_ended_is_vllms_word(word: str | None, reason: FinishReason) -> None:
    assert made(Sampling(), word).finish_reason is reason


def test_a_completion_says_which_law_drew_its_tokens() -> None:
    drawn = made(Sampling(top_logprobs=2))
    assert drawn.token_ids == TOKENS
    assert drawn.logprobs == drawn.behaviour_logprobs == (-2.0, -0.5)
    assert drawn.top is not None
    assert drawn.top.ids.tolist() == [[4, 3], [1, 0]]
    assert (drawn.draft.drafted, drawn.cached_tokens, drawn.weights_version) == (3, 2, 1)
    assert made(Sampling()).top is None


def test_a_greedy_token_was_certain_and_keeps_the_policys_logprob() -> None:
    greedy = made(Sampling(temperature=0, top_logprobs=2))
    assert greedy.logprobs == (-2.0, -0.5)
    assert greedy.behaviour_logprobs == (0.0, 0.0)
    assert greedy.top is not None
    assert greedy.top.logprobs.tolist() == [[0.0, -np.inf]] * 2
