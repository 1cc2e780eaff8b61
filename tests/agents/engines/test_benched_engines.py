import json
from pathlib import Path
from typing import Any

import pytest

from turntree.agents.cli import main


def assert_both_play_the_same(engine: str, model: Path, out: Path, **engine_args: Any) -> None:
    size = ("-n", "2", "--samples", "2", "--epochs", "2", "--max-tokens", "16", "--max-context", "480")
    words = ("bench", str(model), "turntree/Arithmetic-v0", "--engine", engine, *size)
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--engine-args", json.dumps(engine_args), "--out", str(out)])
    assert stopped.value.code == 0
    found = json.loads(out.read_text())
    assert len(found["epochs"]) == 2
    assert found["all"]["equal_turns"] == found["all"]["turns"] > 0
    assert found["all"]["without"]["tokens_per_forward_pass"] == 1.0
    assert found["all"]["with"]["tokens"] == found["all"]["without"]["tokens"]
    assert found["all"]["with"]["drafter_ms_per_step"] > 0
    assert found["all"]["without"]["drafter_ms_per_step"] is None


@pytest.mark.vllm
@pytest.mark.once
@pytest.mark.release
def test_two_engines_of_vllm_play_the_same_turns(chatml: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tiny_vllm import ENVIRONMENT, MEMORY, save_policy

    model = save_policy(tmp_path / "model", len(chatml), eos_token_id=chatml.convert_tokens_to_ids("<|im_end|>"))
    chatml.save_pretrained(model)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert_both_play_the_same("vllm", model, tmp_path / "bench.json", **MEMORY)


@pytest.mark.sglang
@pytest.mark.once
@pytest.mark.release
def test_two_engines_of_sglang_play_the_same_turns(tiny_model: Path, tmp_path: Path) -> None:
    from cpu_sglang import beside, prepare

    prepare()
    machine = beside("dtype", "max_running_requests", "log_level")
    assert_both_play_the_same("sglang", tiny_model, tmp_path / "bench.json", **machine)
