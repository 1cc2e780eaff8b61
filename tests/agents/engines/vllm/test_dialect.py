from types import SimpleNamespace

import numpy as np
import pytest

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest
from turntree.agents.engines.served.dialect import UnsupportedSampling
from turntree.agents.engines.token_logprobs import TokenLogprobs
from turntree.agents.engines.vllm.dialect import VllmDialect, completion, parameters

TOKENS = (3, 1)
READ = TokenLogprobs(
    np.array([-2.0, -0.5]), np.array([[4, 3], [1, 0]], np.int32), np.array([[-0.25, -2.0], [-0.5, -1.5]])
)


def made(sampling: Sampling, finish: str | None = "stop") -> Completion:
    return completion(TOKENS, READ, finish, sampling)


def test_names_and_meanings_are_vllms() -> None:
    sampling = Sampling(temperature=0.5, top_p=0.9, max_tokens=7, stop_token_ids=(3,), seed=5, top_logprobs=2)
    fields = parameters(sampling, speculates=True)
    assert (fields["temperature"], fields["top_p"], fields["max_tokens"]) == (0.5, 0.9, 7)
    assert fields["top_k"] == 0  # all tokens
    assert (fields["logprobs"], fields["stop_token_ids"]) == (2, [3])
    assert fields["ignore_eos"] is True  # a turn ends where the caller says
    assert "seed" not in fields


def test_min_p_is_refused_where_drafts_are_verified_and_only_there() -> None:
    with pytest.raises(UnsupportedSampling, match=r"min_p=0\.1"):
        parameters(Sampling(min_p=0.1), speculates=True)
    assert parameters(Sampling(min_p=0.1), speculates=False)["min_p"] == 0.1
    with pytest.raises(UnsupportedSampling, match=r"0\.001"):
        parameters(Sampling(temperature=0.001), speculates=False)
    assert parameters(Sampling(temperature=0), speculates=False)["temperature"] == 0


@pytest.mark.parametrize(
    ("word", "reason"), [*((str(reason), reason) for reason in FinishReason), (None, FinishReason.ABORT)]
)
def test_why_a_turn_ended_is_vllms_word(word: str | None, reason: FinishReason) -> None:
    assert made(Sampling(), word).finish_reason is reason


def test_a_completion_says_which_law_drew_its_tokens() -> None:
    drawn = made(Sampling(top_logprobs=2))
    assert drawn.token_ids == TOKENS
    assert drawn.logprobs == drawn.behaviour_logprobs == (-2.0, -0.5)
    assert drawn.top.ids.tolist() == [[4, 3], [1, 0]]
    assert made(Sampling()).top is None
    greedy = made(Sampling(temperature=0, top_logprobs=2))
    assert (greedy.logprobs, greedy.behaviour_logprobs) == ((-2.0, -0.5), (0.0, 0.0))
    assert greedy.top.logprobs.tolist() == [[0.0, -np.inf]] * 2


@pytest.mark.parametrize(("cached", "again"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_pass_whose_places_were_in_the_cache_is_asked_for_once_more_without_it(cached: int, again: bool) -> None:
    dialect, answer = VllmDialect(speculates=True), SimpleNamespace(num_cached_tokens=cached)
    request = TurnRequest((1, 2), Sampling(seed=1), draft=(3, 4, 5))
    assert dialect.again(dialect.turn(request, 0), answer) is None
    assert dialect.again(dialect.reverify(request), None) is None
    for asked in (dialect.reverify(request), dialect.scoring((1, 2, 3), 2, 4)):
        more = dialect.again(asked, answer)
        assert (more is not None) is again
        assert more is None or more.fields == {**asked.fields, "skip_reading_prefix_cache": True}
        assert more is None or dialect.again(more, answer) is None


def test_a_precomputed_turn_comes_after_all_others_in_every_request_of_it() -> None:
    dialect = VllmDialect(speculates=True)
    for ahead in (0, 2):
        request = TurnRequest((1, 2), Sampling(seed=1), draft=(3, 4), precomputed_for=ahead)
        assert [dialect.turn(request, 0).priority, dialect.reverify(request).priority] == [int(ahead > 0)] * 2
