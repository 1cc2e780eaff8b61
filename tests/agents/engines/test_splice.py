import numpy as np

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, TopLogprobs
from turntree.agents.engines.splice import join, narrowed


def top(count: int, width: int) -> TopLogprobs:
    ids = np.arange(count * width, dtype=np.int32).reshape(count, width)
    return TopLogprobs(ids=ids, logprobs=-ids.astype(np.float32))


def part(*tokens: int, **changes: object) -> Completion:
    fields: dict[str, object] = {
        "token_ids": tokens,
        "logprobs": (-1.0,) * len(tokens),
        "behaviour_logprobs": (-2.0,) * len(tokens),
        "finish_reason": FinishReason.LENGTH,
    }
    return Completion(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_joined_turn_has_one_entry_a_token_and_the_counters_of_both_parts() -> None:
    first = DraftStats(verify_steps=1, drafted=4, accepted=1, expected=0.5)
    head = part(1, 2, levels="CC", accepted=(True, False), top=top(2, 3), cached_tokens=5, draft=first)
    last = {"draft": DraftStats(verify_steps=2, surprise=0.25), "cached_tokens": 8, "weights_version": 7}
    whole = join(head, part(3, finish_reason=FinishReason.STOP, top=top(1, 4), **last))
    assert (whole.token_ids, whole.levels, whole.accepted) == ((1, 2, 3), "CCA", (True, False, False))
    assert len(whole.logprobs) == len(whole.behaviour_logprobs) == 3
    assert whole.top.ids.shape == (3, 3)
    assert (whole.finish_reason, whole.cached_tokens, whole.weights_version) == (FinishReason.STOP, 5, 7)
    draft = whole.draft
    assert (draft.verify_steps, draft.drafted, draft.accepted) == (3, 4, 1), "counters of both are summed"
    assert (draft.expected, draft.surprise) == (0.5, 0.25)


def test_top_tokens_are_narrowed_to_what_was_asked_for() -> None:
    assert narrowed(top(2, 3), 1).ids.tolist() == [[0], [3]]
    assert narrowed(top(2, 3), 0) is None
    assert narrowed(None, 2) is None
