"""``turntree bench`` with vLLM: two of its engines at once, in turns, started as every command starts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from benched_engine import assert_both_play_the_same
from tiny_vllm import ENVIRONMENT, MEMORY, save_policy

pytestmark = [pytest.mark.vllm, pytest.mark.once, pytest.mark.release]


def test_two_engines_of_vllm_play_the_same_turns(chatml: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save_policy(tmp_path / "model", len(chatml), eos_token_id=chatml.convert_tokens_to_ids("<|im_end|>"))
    chatml.save_pretrained(model)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert_both_play_the_same("vllm", model, tmp_path / "bench.json", **MEMORY)
