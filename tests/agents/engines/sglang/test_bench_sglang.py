"""``turntree bench`` with SGLang: two of its engines at once, in turns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cpu_sglang import CPU_ARGS, prepare

from turntree.agents.cli import main

pytestmark = [pytest.mark.sglang, pytest.mark.once]


def test_two_engines_of_sglang_play_the_same_turns(tiny_model: Path, tmp_path: Path) -> None:
    prepare()
    out = tmp_path / "bench.json"
    ours = ("dtype", "max_running_requests", "log_level")
    further = json.dumps({name: value for name, value in CPU_ARGS.items() if name not in ours})
    size = ("-n", "2", "--samples", "2", "--epochs", "2", "--max-tokens", "16", "--max-context", "480")
    words = ("bench", str(tiny_model), "turntree/Arithmetic-v0", "--engine", "sglang", *size, "--engine-args", further)
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
