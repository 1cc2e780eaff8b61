"""``turntree bench`` with SGLang: two of its engines at once, in turns."""

from __future__ import annotations

from pathlib import Path

import pytest
from benched_engine import assert_both_play_the_same
from cpu_sglang import beside, prepare

pytestmark = [pytest.mark.sglang, pytest.mark.once, pytest.mark.release]


def test_two_engines_of_sglang_play_the_same_turns(tiny_model: Path, tmp_path: Path) -> None:
    prepare()
    machine = beside("dtype", "max_running_requests", "log_level")
    assert_both_play_the_same("sglang", tiny_model, tmp_path / "bench.json", **machine)
