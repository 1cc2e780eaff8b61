from math import exp
from typing import Any

import pytest
from tables import table

from turntree.agents.turn_drafts.config import PRESETS, ReuseConfig, ReuseMode


def test_nothing_is_reused_until_it_is_asked_for() -> None:
    assert ReuseConfig().mode is ReuseMode.NONE
    assert ReuseConfig(mode="rejection_sampling").lenience == 1.0  # type: ignore[arg-type]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_the_papers_biases(preset: str) -> None:
    assert ReuseConfig(mode=ReuseMode.SPEC_RL, preset=preset).lenience == exp(PRESETS[preset])
    assert PRESETS == {"grpo": 0.5, "ppo": 0.3, "dapo": 0.15}


@pytest.mark.parametrize(("fields", "message"), table(__file__, "wrong_reuse"))
def test_a_value_that_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReuseConfig(**fields)
