from __future__ import annotations

from math import exp
from typing import Any

import pytest

from turntree.agents.reuse_config import PRESETS, ReuseConfig, ReuseMode


def test_nothing_is_reused_until_it_is_asked_for() -> None:
    assert ReuseConfig().mode is ReuseMode.NONE
    assert ReuseConfig(mode="exact").lenience == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_the_papers_biases(preset: str) -> None:
    assert ReuseConfig(mode=ReuseMode.LENIENT, preset=preset).lenience == exp(PRESETS[preset])
    assert PRESETS == {"grpo": 0.5, "ppo": 0.3, "dapo": 0.15}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"mode": "lenient"}, "needs preset"),
        ({"mode": "exact", "bias": 0.5}, "belong to mode lenient"),
        ({"mode": "lenient", "preset": "grpo", "bias": 0.5}, "not both"),
        ({"mode": "lenient", "preset": "rloo"}, "one of grpo, ppo, dapo"),
        ({"mode": "lenient", "bias": -0.1}, "not negative"),
        ({"mode": "sometimes"}, "'sometimes' is not a valid ReuseMode"),
        ({"top_k": 0}, "top_k must be at least 1"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"fresh": 1.5}, r"fresh must lie in \[0, 1\]"),
    ],
)
def test_a_value_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReuseConfig(**fields)
