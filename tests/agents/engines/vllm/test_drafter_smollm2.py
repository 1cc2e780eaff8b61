"""Drafts change nothing that a real chat model says in vLLM."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from vllm_in_process import drafter_of, say, start, tokens_per_step

from turntree.agents.engines.vllm.settings import DrafterSettings

pytestmark = pytest.mark.vllm

SCRIPT = Path(__file__).parents[4] / "scripts" / "smollm2.py"
QUESTIONS = ("What is 12 + 34?", "Name three colours.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = importlib.util.spec_from_file_location("smollm2", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    smollm2 = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(smollm2)
    try:
        gguf = smollm2.find_gguf()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    path = tmp_path_factory.mktemp("smollm2")
    smollm2.convert(gguf, path, "float32")
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[Any]:
    pytest.importorskip("vllm", reason="needs vLLM")
    patch = pytest.MonkeyPatch()
    settings = DrafterSettings(adaptive=False, min_probability=0.1)
    yield start(folder, patch, settings, max_model_len=192, max_num_seqs=8)
    patch.undo()


def test_greedy_dialogues_are_the_same_with_drafts_and_take_fewer_steps(llm: Any, folder: Path) -> None:
    from transformers import AutoTokenizer
    from vllm import SamplingParams

    tokenizer = AutoTokenizer.from_pretrained(folder)
    drafter = drafter_of(llm)
    given = SamplingParams(temperature=0.0, max_tokens=20, logprobs=1)

    def ids(messages: list[dict[str, str]]) -> list[int]:
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])

    def dialogues() -> tuple[list[tuple[int, ...]], list[float]]:
        prompts = [ids([{"role": "user", "content": question}]) for question in QUESTIONS]
        first = say(llm, prompts, given)
        more = ids([{"role": "user", "content": "Say it again."}])
        prompts = [[*prompt, *turn.token_ids, *more] for prompt, turn in zip(prompts, first, strict=True)]
        turns = [*first, *say(llm, prompts, given)]
        chosen = [at[token].logprob for turn in turns for token, at in zip(turn.token_ids, turn.logprobs, strict=True)]
        return [tuple(turn.token_ids) for turn in turns], chosen

    drafter.settings = replace(drafter.settings, enabled=False)
    plain, logprobs = dialogues()
    drafter.settings = replace(drafter.settings, enabled=True)
    before = drafter.stats()
    drafted, again = dialogues()
    assert drafted == plain
    assert again == pytest.approx(logprobs, abs=1e-4)
    assert tokens_per_step(drafter, before) > 2
