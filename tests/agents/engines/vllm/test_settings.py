from __future__ import annotations

import json

import pytest

from turntree.agents.engines.vllm.settings import DrafterSettings, speculative_config
from turntree.spec_tree import ForestConfig


def test_settings_come_back_from_vllm_s_configuration_as_they_went_in() -> None:
    settings = DrafterSettings(
        min_probability=0.25,
        adaptive=False,
        max_step_tokens=40,
        forest=ForestConfig(rollouts_per_state=4, end_tokens=frozenset({7, 9})),
    )
    travelled = json.loads(json.dumps(settings.to_additional_config()))
    assert DrafterSettings.from_additional_config(travelled) == settings


def test_a_configuration_of_others_gives_the_defaults() -> None:
    assert DrafterSettings.from_additional_config({"other": 1}) == DrafterSettings()
    assert DrafterSettings.from_additional_config(None) == DrafterSettings()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"adaptiv": True}, "'adaptive'"),
        ({"forest": {"rollouts_per_stat": 3}}, "'rollouts_per_state'"),
        ({"min_probability": 2}, r"\[0, 1\]"),
        ({"max_step_tokens": 0}, "at least 1"),
        ({"min_probability": "much"}, "wrong type"),
        ([1], "mapping"),
    ],
)
def test_what_cannot_be_is_refused_by_name(section: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DrafterSettings.from_additional_config({"turntree": section})


def test_vllm_is_told_the_drafter_and_the_length_of_its_drafts() -> None:
    module, name = speculative_config(6)["model"].rsplit(".", 1)
    assert hasattr(__import__(module, fromlist=[name]), name)
    assert speculative_config(6)["num_speculative_tokens"] == 6
