"""``turntree bench`` on a few tasks of arithmetic, as a command does it: two engines of one kind, in turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turntree.agents.cli import main


def assert_both_play_the_same(engine: str, model: Path, out: Path, **engine_args: Any) -> None:
    """Both engines say the same, and the figures are of what each is: one drafts, the other does not."""
    size = ("-n", "2", "--samples", "2", "--epochs", "2", "--max-tokens", "16", "--max-context", "480")
    words = ("bench", str(model), "turntree/Arithmetic-v0", "--engine", engine, *size)
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--engine-args", json.dumps(engine_args), "--out", str(out)])
    assert stopped.value.code == 0
    found = json.loads(out.read_text())
    assert len(found["epochs"]) == 2
    assert found["all"]["equal_turns"] == found["all"]["turns"] > 0
    assert found["all"]["without"]["tokens_per_step"] == 1.0
    assert found["all"]["with"]["tokens"] == found["all"]["without"]["tokens"]
    assert found["all"]["with"]["drafter_ms_per_step"] > 0
    assert found["all"]["without"]["drafter_ms_per_step"] is None
