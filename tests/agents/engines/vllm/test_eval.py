"""``turntree eval --engine vllm`` as a whole: the engine started by the command, a tiny model, real tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from arithmetic_eval import evaluated
from tiny_vllm import ENVIRONMENT, save_policy

pytestmark = [pytest.mark.vllm, pytest.mark.once]


def test_a_model_is_evaluated_inside_vllm(
    chatml: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("vllm", reason="needs vLLM; see make test-vllm")
    model = save_policy(tmp_path / "model", len(chatml), eos_token_id=chatml.convert_tokens_to_ids("<|im_end|>"))
    chatml.save_pretrained(model)
    for name, value in {**ENVIRONMENT, "VLLM_CPU_KVCACHE_SPACE": "1"}.items():
        monkeypatch.setenv(name, value)
    turns = evaluated("vllm", model, tmp_path / "episodes.jsonl", capsys)
    assert all(0 < turn.draft.verify_steps <= len(turn.token_ids) for turn in turns)
