import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from chat_tokenizers import chatml_tokenizer
from example_files import load


def assert_drafts_change_the_passes_and_not_the_tokens(example: ModuleType, model: Path, **engine_args: Any) -> None:
    size = ("--tasks", "2", "--samples", "2", "--epochs", "2", "--max-tokens", "24", "--max-context", "480")
    words = [str(model), *size, "--dtype", "float32", "--always", "--engine-args", json.dumps(engine_args)]
    plain, drafted = example.main(words)
    assert plain.tokens == drafted.tokens
    assert len(set(plain.tokens)) >= 4  # control: the tasks and seeds do differ
    assert plain.tokens_per_forward_pass == [1.0, 1.0]
    assert drafted.tokens_per_forward_pass[1] > 1.5


@pytest.mark.sglang
@pytest.mark.once
@pytest.mark.release
def test_drafts_in_sglang_change_the_passes_and_not_the_tokens(tiny_model: Path) -> None:
    from cpu_sglang import beside, prepare

    prepare()
    engine_args = beside("dtype", "max_running_requests", "random_seed", "log_level")  # which the example says
    assert_drafts_change_the_passes_and_not_the_tokens(load("speculate_sglang"), tiny_model, **engine_args)


@pytest.mark.vllm
@pytest.mark.once
@pytest.mark.release
def test_drafts_in_vllm_change_the_passes_and_not_the_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiny_vllm import ENVIRONMENT, MEMORY, save_policy

    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    tokenizer = chatml_tokenizer()
    save_policy(tmp_path, len(tokenizer), eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"))
    tokenizer.save_pretrained(tmp_path)
    assert_drafts_change_the_passes_and_not_the_tokens(load("speculate_vllm"), tmp_path, **MEMORY)
