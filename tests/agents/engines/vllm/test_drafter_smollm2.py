"""Drafts change nothing that a real chat model says in vLLM, whose engine runs in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_vllm import ENVIRONMENT, MEMORY

from turntree.agents.demo.smollm2 import make_smollm2
from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config

pytestmark = [pytest.mark.vllm, pytest.mark.release]

QUESTIONS = ("What is 12 + 34?", "Name three colours.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("smollm2")
    make_smollm2(path)
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        from vllm import LLM

        size = {"dtype": "float32", "max_model_len": 192, "max_num_seqs": 8, **MEMORY}
        settings = DrafterSettings(adaptive=False, min_probability=0.1).to_additional_config()
        drafts = {"speculative_config": speculative_config(8), "additional_config": settings}
        yield LLM(str(folder), skip_tokenizer_init=True, enforce_eager=True, **size, **drafts)


def test_greedy_dialogues_are_the_same_with_drafts_and_take_fewer_steps(llm: Any, folder: Path) -> None:
    from transformers import AutoTokenizer
    from vllm import SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(folder)
    drafter = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.drafter
    given = SamplingParams(temperature=0.0, max_tokens=20, logprobs=1)

    def ids(text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])

    def say(prompts: list[list[int]]) -> list[Any]:
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        return [answer.outputs[0] for answer in llm.generate(asked, given, use_tqdm=False)]

    def dialogues() -> tuple[list[tuple[int, ...]], list[float]]:
        prompts = [ids(question) for question in QUESTIONS]
        first, more = say(prompts), ids("Say it again.")
        again = [[*prompt, *turn.token_ids, *more] for prompt, turn in zip(prompts, first, strict=True)]
        turns = [*first, *say(again)]
        chosen = [at[token].logprob for turn in turns for token, at in zip(turn.token_ids, turn.logprobs, strict=True)]
        return [tuple(turn.token_ids) for turn in turns], chosen

    drafter.settings = replace(drafter.settings, enabled=False)
    plain, logprobs = dialogues()
    drafter.settings = replace(drafter.settings, enabled=True)
    before = drafter.stats()
    drafted, again = dialogues()
    now = drafter.stats()
    assert drafted == plain
    assert again == pytest.approx(logprobs, abs=1e-4)
    assert (now["tokens"] - before["tokens"]) / (now["rows"] - before["rows"]) > 2
