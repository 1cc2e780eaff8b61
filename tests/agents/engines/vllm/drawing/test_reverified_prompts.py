import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason='the engines draw with PyTorch: pip install -e ".[local]"')

from turntree.agents.engines.request_wire import request_entries  # noqa: E402
from turntree.agents.engines.vllm.drawing import reverified_prompts  # noqa: E402
from turntree.spec_tree.rules.noise import exponential  # noqa: E402

VOCABULARY, PROMPT, GIVEN, SEED = 11, 9, 4, 5
TABLE = torch.from_numpy(np.random.default_rng(3).normal(size=(PROMPT, VOCABULARY)).astype(np.float32))
"""Logits at each position of the prompt."""


@pytest.fixture(autouse=True)
def outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(rows: int, width: int) -> Any:
        return SimpleNamespace(
            logprob_token_ids=torch.zeros(rows, width, dtype=torch.int32),
            logprobs=torch.zeros(rows, width),
            selected_token_ranks=torch.ones(rows, dtype=torch.int32),
        )

    module = ModuleType("vllm.v1.outputs")
    module.LogprobsTensors = SimpleNamespace(empty_cpu=empty)  # type: ignore[attr-defined]
    for package in ("vllm", "vllm.v1"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, module.__name__, module)


def runner_of(**requests: Any) -> Any:
    return SimpleNamespace(
        requests=requests,
        num_prompt_logprobs=dict.fromkeys(requests, 0),
        input_batch=SimpleNamespace(req_id_to_index={name: row for row, name in enumerate(requests)}),
        model=SimpleNamespace(compute_logits=lambda hidden: hidden),
        heard={},
        _get_prompt_logprobs_dict=lambda hidden, scheduled: {},
    )


def reverified() -> Any:
    entries = request_entries(seed=SEED, given=GIVEN, reverified=True)
    parameters = SimpleNamespace(extra_args=entries, temperature=1.0, top_k=0, top_p=1.0)
    return SimpleNamespace(
        sampling_params=parameters,
        prompt_token_ids=[0] * PROMPT,
        num_computed_tokens=0,
        in_progress_prompt_logprobs_cpu=None,
    )


def passed(runner: Any, count: int) -> dict[str, Any]:
    (name,) = runner.requests
    request = runner.requests[name]
    runner.query_start_loc = SimpleNamespace(np=np.array([0, count]))
    hidden = TABLE[request.num_computed_tokens : request.num_computed_tokens + count]
    found: dict[str, Any] = runner._get_prompt_logprobs_dict(hidden, {name: count})
    request.num_computed_tokens += count
    return found


def winner(position: int) -> int:
    p = TABLE[PROMPT - GIVEN - 1 + position].double().softmax(-1).numpy()
    clocks = exponential(np.array([SEED], np.uint64), np.array([position]), np.arange(VOCABULARY))
    return int((clocks / p).argmin())


@pytest.mark.parametrize("passes", [[PROMPT], [6, 3], [3, 3, 2, 1], [1] * PROMPT], ids=str)
def test_a_prompt_read_in_several_passes_is_reverified_as_in_one_and_waits_until_it_is_read(passes: list[int]) -> None:
    runner, heard = runner_of(a=reverified()), []
    runner.drafter = SimpleNamespace(record_given=lambda name, drawn: heard.append((name, drawn)))
    reverified_prompts.install(runner)
    *before, last = [passed(runner, count) for count in passes[:-1]], passed(runner, passes[-1])
    assert before == [[{}] * (len(passes) - 1)]
    expected = [winner(position) for position in range(GIVEN)]
    assert last["a"].logprob_token_ids[:, 0].tolist() == expected
    assert heard == [("a", expected)]
    assert runner.num_prompt_logprobs == {}


def test_a_request_that_is_read_to_its_end_waits_no_more_and_begins_anew_where_it_comes_again() -> None:
    runner = runner_of(a=reverified())
    reverified_prompts.install(runner)
    passed(runner, 6)
    assert runner.num_prompt_logprobs == {"a": 0}
    assert runner.requests["a"].in_progress_prompt_logprobs_cpu is not None
    first = passed(runner, 3)["a"]
    assert runner.requests["a"].in_progress_prompt_logprobs_cpu is None
    runner.requests["a"].num_computed_tokens, runner.num_prompt_logprobs["a"] = 0, 0  # preempted: it is read again
    again = passed(runner, PROMPT)["a"]
    assert again is not first
    assert torch.equal(again.logprob_token_ids, first.logprob_token_ids)


def test_the_noise_says_other_things_than_the_likeliest_tokens() -> None:
    """Control: the noise depends on the position."""
    likeliest = TABLE[PROMPT - GIVEN - 1 :].argmax(1)[:GIVEN].tolist()
    assert [winner(position) for position in range(GIVEN)] != likeliest
