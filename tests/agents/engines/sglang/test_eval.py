"""``turntree eval --engine sglang`` as a whole: the engine in this process, a tiny model, real tasks."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from arithmetic_eval import evaluated
from cpu_sglang import CPU_ARGS

pytestmark = [pytest.mark.sglang, pytest.mark.once]


def test_a_model_is_evaluated_inside_sglang(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sglang = pytest.importorskip("sglang", reason="needs SGLang; see make test-sglang")
    given = ("dtype", "max_running_requests", "log_level")
    machine = {name: value for name, value in CPU_ARGS.items() if name not in given}
    monkeypatch.setattr(sglang, "Engine", partial(sglang.Engine, **machine))
    turns = evaluated("sglang", tiny_model, tmp_path / "episodes.jsonl", capsys)
    assert all(len(turn.accepted) == len(turn.token_ids) for turn in turns), "turntree's worker says so of each"
