"""``turntree bench`` with vLLM: two of its engines at once, in turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_vllm import ENVIRONMENT, save_policy

from turntree.agents.cli import main

pytestmark = [pytest.mark.vllm, pytest.mark.once]


def test_two_engines_of_vllm_play_the_same_turns(chatml: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    model, out = save_policy(tmp_path / "model", len(chatml)), tmp_path / "bench.json"
    chatml.save_pretrained(model)
    memory = json.dumps({"kv_cache_memory_bytes": 1 << 26, "block_size": 32})
    size = ("-n", "2", "--samples", "2", "--epochs", "2", "--max-tokens", "16", "--max-context", "480")
    words = ("bench", str(model), "turntree/Arithmetic-v0", "--engine", "vllm", *size, "--engine-args", memory)
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--out", str(out)])
    assert stopped.value.code == 0
    found = json.loads(out.read_text())
    assert len(found["epochs"]) == 2
    assert found["all"]["equal_turns"] == found["all"]["turns"] > 0
    assert found["all"]["without"]["tokens_per_step"] == 1.0
    assert found["all"]["with"]["tokens"] == found["all"]["without"]["tokens"]
    assert found["all"]["with"]["drafter_ms_per_step"] > 0
    assert found["all"]["without"]["drafter_ms_per_step"] is None
