from __future__ import annotations

import pytest

from turntree.agents.engines.sglang.settings import SglangSettings, settings_from_environment
from turntree.spec_tree.config import ForestConfig


def read(text: str) -> SglangSettings:
    return settings_from_environment({"TURNTREE_SGLANG": text})


def test_without_the_variable_there_are_the_defaults():
    assert settings_from_environment({}) == SglangSettings()
    assert read("") == SglangSettings()


def test_settings_come_as_json():
    settings = read('{"widths": [2, 8], "adaptive": false, "forest": {"rollouts_per_state": 3, "end_tokens": [7]}}')
    assert settings.widths == (2, 8)
    assert not settings.adaptive
    assert settings.forest == ForestConfig(rollouts_per_state=3, end_tokens=frozenset({7}))


def test_the_widest_is_always_among_the_widths():
    assert SglangSettings().widths_within(8) == (1, 2, 4, 8)
    assert SglangSettings().widths_within(1) == (1,)
    assert SglangSettings(widths=(4,)).widths_within(4) == (4,)
    assert SglangSettings(widths=(1, 16)).widths_within(6) == (1, 6)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "must hold a JSON object"),
        ("[1]", "must hold a JSON object"),
        ('{"width": [1]}', "nearest is 'widths'"),
        ('{"widths": [4, 2]}', "ascending"),
        ('{"widths": 4}', "wrong type"),
        ('{"max_depth": 0}', "max_depth must be at least 1"),
        ('{"min_probability": 2}', "min_probability must lie"),
        ('{"token_cost": 0}', "token_cost must be positive"),
        ('{"forest": {"max_token": 1}}', "nearest is 'max_tokens'"),
    ],
)
def test_a_wrong_setting_says_what_is_wrong(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        read(text)
