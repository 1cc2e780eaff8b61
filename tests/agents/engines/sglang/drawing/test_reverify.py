from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from turntree.agents.engines.request_wire import request_entries
from turntree.agents.engines.sglang.drawing import reverify
from turntree.agents.engines.sglang.drawing.draws import Noises
from turntree.agents.engines.sglang.drawing.reverify import Reverification
from turntree.agents.engines.sglang.wire import OURS
from turntree.spec_tree.rules.noise import exponential

VOCABULARY = 16
TEMPERATURES = [1.0, 0.5, 2.0]


@pytest.fixture(autouse=True)
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reverify, "alike_on_ranks", lambda drawn: drawn)


def request(prompt: int, turn_draft: int, seed: int, *, reverified: bool = True) -> Any:
    entries = {OURS: True, **request_entries(seed=seed, given=turn_draft, reverified=reverified)}
    return SimpleNamespace(
        sampling_params=SimpleNamespace(custom_params=entries), origin_input_ids=[1] * (prompt + turn_draft)
    )


def batch(prefixes: list[int], starts: list[int], lengths: list[int], **cuts: Any) -> Any:
    rows = len(lengths)
    sampling = SimpleNamespace(
        temperatures=torch.tensor(TEMPERATURES[:rows])[:, None],
        top_ks=torch.full((rows,), cuts.get("top_k", VOCABULARY)),
        top_ps=torch.ones(rows),
        min_ps=torch.zeros(rows),
        need_top_k_sampling="top_k" in cuts,
        need_top_p_sampling=False,
        need_min_p_sampling=False,
    )
    return SimpleNamespace(
        sampling_info=sampling,
        extend_prefix_lens_cpu=prefixes,
        extend_logprob_start_lens_cpu=starts,
        extend_seq_lens_cpu=lengths,
    )


def output(rows: list[int]) -> Any:
    theirs = [[["theirs"]] * count for count in rows]
    return SimpleNamespace(input_top_logprobs_val=list(theirs), input_top_logprobs_idx=list(theirs))


def winners(logits: torch.Tensor, seed: int, first: int) -> list[int]:
    clocks = exponential(
        np.array(seed, np.uint64), first + np.arange(len(logits))[:, None], np.arange(VOCABULARY)[None]
    )
    return (clocks / logits.double().softmax(-1).numpy()).argmin(-1).tolist()


@pytest.mark.parametrize("piece", [1, 3, 100])
def test_a_token_is_drawn_at_each_place_of_a_draft_by_the_noise_of_its_place_in_the_turn(piece: int) -> None:
    """Two drafts, the second one partly in the cache, with another request between them."""
    requests = [request(4, 5, 7), request(3, 0, 8, reverified=False), request(6, 5, 9)]
    one = Reverification(batch([0, 0, 7], [3, 1, 0], [9, 3, 4]), Noises.of(requests))
    logits = torch.randn(6 + 2 + 4, VOCABULARY, generator=torch.Generator().manual_seed(0))
    for begin in range(0, len(logits), piece):
        one.draw(logits[begin : begin + piece])
    seen = output([6, 2, 4])
    one.write(seen)
    assert seen.input_top_logprobs_idx[0] == [[token, token] for token in winners(logits[:6], 7, 0)]
    assert seen.input_top_logprobs_idx[1] == [["theirs"]] * 2
    assert seen.input_top_logprobs_idx[2] == [[token, token] for token in winners(logits[8:] / 2, 9, 2)]
    assert seen.input_top_logprobs_idx[2] != [[token, token] for token in winners(logits[8:] / 2, 9, 0)]
    law = logits[:6].log_softmax(-1)
    drawn = [pair[0] for pair in seen.input_top_logprobs_idx[0]]
    np.testing.assert_allclose(seen.input_top_logprobs_val[0], law[range(6), drawn][:, None].repeat(1, 2), atol=1e-6)


def test_log_probabilities_come_before_and_after_the_cuts() -> None:
    one = Reverification(batch([0], [3], [9], top_k=2), Noises.of([request(4, 5, 7)]))
    logits = torch.randn(6, VOCABULARY, generator=torch.Generator().manual_seed(1))
    one.draw(logits)
    seen = output([6])
    one.write(seen)
    best, law = logits.topk(2, -1), logits.log_softmax(-1)
    for index, ((token, _), (before, after)) in enumerate(
        zip(seen.input_top_logprobs_idx[0], seen.input_top_logprobs_val[0], strict=True)
    ):
        assert token in best.indices[index]
        assert before == pytest.approx(float(law[index, token]), abs=1e-6)
        assert after == pytest.approx(float(logits[index, token] - best.values[index].logsumexp(-1)), abs=1e-5)


@pytest.mark.parametrize("rows", [5, 7])
def test_of_a_pass_with_other_rows_than_expected_nothing_is_said(rows: int) -> None:
    one = Reverification(batch([0], [3], [9]), Noises.of([request(4, 5, 7)]))
    for _ in range(rows):
        one.draw(torch.zeros(1, VOCABULARY))
    seen = output([6])
    one.write(seen)
    assert seen.input_top_logprobs_idx[0] == [["theirs"]] * 6
