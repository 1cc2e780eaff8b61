"""The example of vLLM, by vLLM itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chat_tokenizers import CHATML, make_tokenizer
from example_files import load
from tiny_vllm import MEMORY, ONE_PROCESS, save_policy

pytestmark = [pytest.mark.vllm, pytest.mark.once]


def test_drafts_in_vllm_change_the_passes_and_not_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ONE_PROCESS.items():
        monkeypatch.setenv(name, value)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer: Any = make_tokenizer(CHATML, special=special, eos="<|endoftext|>")
    save_policy(tmp_path, len(tokenizer), eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"))
    tokenizer.save_pretrained(tmp_path)
    size = ("--tasks", "2", "--samples", "2", "--epochs", "2", "--max-tokens", "24", "--max-context", "480")
    words = [str(tmp_path), *size, "--dtype", "float32", "--always", "--engine-args", json.dumps(MEMORY)]
    plain, drafted = load("speculate_vllm").main(words)
    assert plain.tokens == drafted.tokens
    assert len(set(plain.tokens)) >= 4  # control: the tasks and seeds do differ
    assert plain.tokens_per_step == [1.0, 1.0]
    assert drafted.tokens_per_step[1] > 1.5
