import sys
from collections import namedtuple
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='the engines draw with PyTorch: pip install -e ".[local]"')

import fused_draws  # noqa: E402
from launches import Launches, fused_kernels  # noqa: E402
from pretended_device import DEVICE, pretended_device  # noqa: E402
from sampling_runner import SamplingRunner, request  # noqa: E402

from turntree.agents.engines.vllm.drawing import fused_sampling  # noqa: E402
from turntree.agents.engines.vllm.drawing.batch_rows import CurrentRows  # noqa: E402
from turntree.spec_tree.rules.noise import exponential  # noqa: E402

VOCABULARY = 11
TABLE = torch.from_numpy(np.random.default_rng(3).normal(size=(64, VOCABULARY)).astype(np.float32))
"""Logits at each position of a turn."""
NONE = -1


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_sampling, "kernels_on", lambda kind: fused_draws if kind == "cpu" else fused_kernels)
    outputs = ModuleType("vllm.v1.outputs")
    outputs.SamplerOutput = namedtuple("SamplerOutput", "sampled_token_ids, logprobs_tensors")  # type: ignore[attr-defined]
    outputs.LogprobsLists = namedtuple("LogprobsLists", "tokens, logprobs, ranks, begins")  # type: ignore[attr-defined]
    for package in ("vllm", "vllm.v1"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, outputs.__name__, outputs)


def runner_of(*requests: Any, **given: Any) -> SamplingRunner:
    runner = SamplingRunner(*requests, **given)
    fused_sampling.install(runner, CurrentRows(runner))
    return runner


def token(seed: int, position: int, temperature: float = 1.0) -> int:
    p = (TABLE[position] / temperature).double().softmax(-1).numpy()
    clocks = exponential(np.array([seed], np.uint64), np.array([position]), np.arange(VOCABULARY))
    return int((clocks / p).argmin())


def logits(runner: SamplingRunner, drafts: Any = None, **moved: int) -> Any:
    # `counted` tells how many tokens fewer a request has than the host counts.
    rows = []
    for name, draft in zip(runner.input_batch.req_ids, drafts or [[]] * len(runner.requests), strict=True):
        asked = runner.requests[name]
        begin = int(asked.sampling_params.extra_args.get("turntree_given", 0)) + len(asked.output_token_ids)
        begin -= moved.get(f"r{name}", 0)
        rows += range(begin, begin + len(draft) + 1)
    return TABLE[rows]


def step(runner: SamplingRunner, drafts: Any = None) -> list[list[int]]:
    drafted = runner.prepare(drafts)
    output = runner._sample(logits(runner, drafts), drafted)
    assert output.sampled_token_ids.dtype == torch.int32
    return [[one for one in row if one != NONE] for row in output.sampled_token_ids.tolist()]


def test_a_step_without_drafts_samples_each_request_by_its_seed_or_greedily() -> None:
    runner = runner_of(request(5, said=3), request(None, temperature=0.0, said=1), request(2**64 - 1, temperature=0.5))
    assert step(runner) == [[token(5, 3)], [int(TABLE[1].argmax())], [token(2**64 - 1, 0, 0.5)]]


def test_given_tokens_are_positions_of_the_turn() -> None:
    assert step(runner_of(request(5, said=2, given=4))) == [[token(5, 6)]]


def test_a_step_with_drafts_keeps_what_agrees_and_the_token_after_it() -> None:
    five, six = [token(5, n) for n in range(4)], [token(6, 2 + n) for n in range(4)]
    best = TABLE.argmax(-1).tolist()
    wrong = [*six[:1], (six[1] + 1) % VOCABULARY, six[2]]
    runner = runner_of(request(5), request(6, said=2), request(7), request(None, temperature=0.0))
    emitted = step(runner, [five[:3], wrong, [], [best[0], (best[1] + 1) % VOCABULARY]])
    assert emitted == [five, six[:2], [token(7, 0)], best[:2]]


UNSUITED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "top-k": ({}, {"top_k": torch.ones(1)}),
    "top-p": ({}, {"top_p": torch.ones(1)}),
    "penalties": ({}, {"no_penalties": False}),
    "bad words": ({}, {"bad_words_token_ids": {0: [[1]]}}),
    "allowed tokens": ({}, {"allowed_token_ids_mask": torch.ones(1)}),
    "chosen log-probabilities": ({}, {"logprob_token_ids": {0: [1]}}),
    "more log-probabilities": ({}, {"max_num_logprobs": 2}),
    "thinking": ({}, {"thinking_budget_state_holder": SimpleNamespace(has_tracked_requests=lambda: True)}),
    "processors": ({}, {"logitsprocs": SimpleNamespace(all=[SimpleNamespace()])}),
    "min-p": ({"min_p": 0.1}, {}),
    "least length": ({"min_tokens": 3}, {}),
    "bias": ({"logit_bias": {1: 2.0}}, {}),
    "no seed": ({"seed": None}, {}),
}


@pytest.mark.parametrize("case", UNSUITED)
def test_where_more_than_temperature_changes_the_logits_vllm_samples(case: str) -> None:
    parameters, sampling = UNSUITED[case]
    runner = runner_of(request(5), request(**{"seed": 6, **parameters}), **sampling)
    assert runner._sample(TABLE[:2], runner.prepare()) == "vLLM's"


def test_without_kernels_and_for_other_log_probabilities_vllm_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of(request(5), max_num_logprobs=0)
    runner.sampler.logprobs_mode = "raw_logprobs"
    assert runner._sample(TABLE[:1], runner.prepare()) == "vLLM's"
    monkeypatch.setattr(fused_sampling, "kernels_on", lambda kind: None)
    runner = runner_of(request(5))
    assert runner._sample(TABLE[:1], runner.prepare()) == "vLLM's"


def test_requests_that_change_places_or_come_back_under_an_id_have_their_own_noise() -> None:
    runner = runner_of(request(5), request(6, said=1))
    assert step(runner) == [[token(5, 0)], [token(6, 1)]]
    runner.input_batch.req_ids.reverse()
    runner.changed()
    assert step(runner) == [[token(6, 1)], [token(5, 0)]]
    runner.requests["0"] = request(9)
    runner.changed()
    assert step(runner) == [[token(6, 1)], [token(9, 0)]]
    runner.input_batch.req_ids.remove("1")
    runner.changed()
    del runner.requests["1"]
    assert step(runner) == [[token(9, 0)]]


def test_rows_are_read_when_the_batch_changes_and_not_in_each_step() -> None:
    runner = runner_of(request(5))
    rows = CurrentRows(runner)
    assert rows.now() is rows.now()
    before = rows.now()
    runner.changed()
    assert rows.now() is not before


def test_positions_are_the_devices_where_the_host_counts_drafts_before_they_are_verified() -> None:
    runner = runner_of(request(5, said=2))
    drafted = runner.prepare([[1, 1]])
    runner.requests["0"].output_token_ids += [NONE] * 3
    output = runner._sample(logits(runner, [[1, 1]], r0=3), drafted)
    assert output.sampled_token_ids[0, 0] == token(5, 2)


def test_log_probabilities_come_with_one_copy_and_are_those_after_temperature() -> None:
    runner = runner_of(request(5, temperature=0.5), request(None, temperature=0.0), max_num_logprobs=0)
    turn = [token(5, n, 0.5) for n in range(2)]
    best = TABLE[:2].argmax(-1).tolist()
    drafts = [turn[:1], [(best[0] + 1) % VOCABULARY]]
    output = runner._sample(logits(runner, drafts), runner.prepare(drafts))
    for tensors in (output.logprobs_tensors, output.logprobs_tensors.to_cpu_nonblocking()):
        mask = (output.sampled_token_ids != NONE).flatten().numpy()
        lists = tensors.filter(mask).tolists([0, 2, 3])
        assert lists.tokens.tolist() == [[turn[0]], [turn[1]], [best[0]]]
        law = torch.stack([TABLE[0] / 0.5, TABLE[1] / 0.5, TABLE[0]]).log_softmax(-1)
        wanted = law.gather(1, torch.from_numpy(lists.tokens).long())
        assert lists.logprobs == pytest.approx(wanted.numpy(), abs=1e-6)
        assert (lists.ranks.tolist(), lists.begins) == ([0, 0, 1], [0, 2, 3])


def counted(rows: int, *, drafted: bool) -> Launches:
    with pretended_device():
        requests = [request(row, temperature=row % 3 / 2, said=row % 5) for row in range(rows)]
        runner = runner_of(*requests, device=DEVICE, max_num_logprobs=0)
        drafts = [[1] * (row % 9) for row in range(rows)] if drafted else None
        step_logits = logits(runner, drafts).to(DEVICE)
        metadata = runner.prepare(drafts)
        runner._sample(step_logits, metadata)
        with Launches() as found:
            output = runner._sample(step_logits, metadata)
            tokens = output.sampled_token_ids.cpu().numpy()
            lists = output.logprobs_tensors.filter((tokens != NONE).flatten()).tolists()
        assert len(lists.tokens) >= rows
    return found


@pytest.mark.parametrize("drafted", [True, False])
def test_a_step_takes_eight_operations_and_one_wait_whatever_the_rows(drafted: bool) -> None:
    few, many = counted(4, drafted=drafted), counted(64, drafted=drafted)
    assert few.launched == many.launched == (8 if drafted else 6)
    assert few.waits == many.waits == 1


def test_the_kernels_are_compiled_after_the_dry_run_for_logits_as_the_model_gives_them(monkeypatch):
    warmed: list[Any] = []
    runner = runner_of(request(5))
    runner.model = SimpleNamespace(compute_logits=lambda hidden: hidden @ torch.ones(4, 20, dtype=torch.bfloat16))
    monkeypatch.setattr(fused_draws, "warm_up", warmed.append, raising=False)
    runner._dummy_sampler_run(torch.ones(8, 4, dtype=torch.bfloat16))
    assert [(one.dtype, one.shape) for one in warmed] == [(torch.bfloat16, (2, 20))]
