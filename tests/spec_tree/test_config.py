from typing import Any

import pytest
from tables import table

from turntree.spec_tree import ForestConfig
from turntree.spec_tree.config import config_from_text, config_to_text


@pytest.mark.parametrize(("settings", "message"), table(__file__, "wrong_settings"))
def test_a_wrong_setting_says_what_was_expected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ForestConfig(**settings)


def test_the_least_settings_are_allowed_and_settings_come_back_from_text_as_they_were() -> None:
    least = {"max_tokens": 1024, "max_cold_tokens": 0, "max_context_tokens": 1024, "context_window": 0}
    config = ForestConfig(rollouts_per_state=1, end_tokens=[3, 4], **least)  # type: ignore[arg-type]
    assert config.end_tokens == frozenset({3, 4})
    hash(config)
    config = ForestConfig(end_tokens=frozenset({7, 2**31 - 1}), rollouts_per_state=3, max_tokens=2048)
    assert config_from_text(config_to_text(config)) == config != ForestConfig()
    assert config_from_text('{"rollouts_per_state": 5}') == ForestConfig(rollouts_per_state=5)


@pytest.mark.parametrize(("text", "message"), table(__file__, "no_settings"))
def test_text_that_is_no_settings_is_refused_and_says_why(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from_text(text)
