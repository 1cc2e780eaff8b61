from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_vllm import MEMORY, in_this_process, save_policy

from turntree.agents.engines.request_wire import request_entries
from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config

pytestmark = pytest.mark.vllm

VOCABULARY, TURN = 64, 24


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("vllm", reason="needs vLLM; see make test-vllm")
    folder = save_policy(tmp_path_factory.mktemp("policy"), VOCABULARY)
    with in_this_process():
        from vllm import LLM

        settings = DrafterSettings(adaptive=False, min_probability=0.02).to_additional_config()
        yield LLM(
            str(folder),
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="float32",
            max_model_len=128,
            max_num_seqs=4,  # fewer than there are requests: they join and leave
            logprobs_mode="processed_logprobs",
            speculative_config=speculative_config(4),
            additional_config=settings,
            **MEMORY,
        )


def turns(llm: Any) -> list[tuple[list[int], list[float]]]:
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": [3 + n, 5, 7 + n % 3]} for n in range(9)]
    asked = [
        SamplingParams(
            temperature=(1.0, 0.7, 0.0)[n % 3],
            max_tokens=TURN - n,
            ignore_eos=True,
            detokenize=False,
            logprobs=0,
            extra_args=request_entries(seed=n // 2),
        )
        for n in range(len(prompts))
    ]
    answers = [answer.outputs[0] for answer in llm.generate(prompts, asked, use_tqdm=False)]
    return [
        (list(one.token_ids), [at[token].logprob for token, at in zip(one.token_ids, one.logprobs, strict=True)])
        for one in answers
    ]


def test_turns_are_the_same_with_and_without_the_kernels_and_each_step_is_theirs(llm, monkeypatch):
    import fused_draws

    from turntree.agents.engines.vllm.drawing import fused_sampling

    plain = turns(llm)
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    before = runner.drafter.stats()
    drawn: list[bool] = []

    def draw_rows(*args: Any, **kwargs: Any) -> Any:
        drawn.append("ends" in kwargs)
        return fused_draws.draw_rows(*args, **kwargs)

    kernels = SimpleNamespace(draw_rows=draw_rows, match_rows=fused_draws.match_rows)
    monkeypatch.setattr(fused_sampling, "kernels_on", lambda kind: kernels)
    monkeypatch.setattr(runner.sampler, "forward", None)  # vLLM's own is not called
    fused = turns(llm)
    now = runner.drafter.stats()
    assert [tokens for tokens, _ in fused] == [tokens for tokens, _ in plain]
    for (_, ours), (_, theirs) in zip(fused, plain, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert {True, False} == set(drawn), "steps with drafts and without"
    assert now["accepted"] > before["accepted"]
