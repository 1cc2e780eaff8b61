"""The example of SGLang, by SGLang itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cpu_sglang import beside, prepare
from example_files import load

pytestmark = [pytest.mark.sglang, pytest.mark.once]


def test_drafts_in_sglang_change_the_passes_and_not_the_tokens(tiny_model: Path) -> None:
    prepare()
    engine_args = beside("dtype", "max_running_requests", "random_seed", "log_level")  # which the example says
    size = ("--tasks", "2", "--samples", "2", "--epochs", "2", "--max-tokens", "24", "--max-context", "480")
    words = [str(tiny_model), *size, "--dtype", "float32", "--always", "--engine-args", json.dumps(engine_args)]
    plain, drafted = load("speculate_sglang").main(words)
    assert plain.tokens == drafted.tokens
    assert len(set(plain.tokens)) >= 4  # control: the tasks and seeds do differ
    assert plain.tokens_per_step == [1.0, 1.0]
    assert drafted.tokens_per_step[1] > 1.5
