"""Settings as text and back."""

import pytest

from turntree.spec_tree import ForestConfig
from turntree.spec_tree.config_text import config_from_text, config_to_text


def test_settings_come_back_as_they_were() -> None:
    config = ForestConfig(end_tokens=frozenset({7, 2**31 - 1}), rollouts_per_state=3, max_tokens=2048)
    assert config_from_text(config_to_text(config)) == config != ForestConfig()


def test_what_is_not_said_has_its_default() -> None:
    assert config_from_text('{"rollouts_per_state": 5}') == ForestConfig(rollouts_per_state=5)


def test_an_unknown_key_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"'rollout_per_state'.*the nearest is 'rollouts_per_state'"):
        config_from_text('{"rollout_per_state": 5}')


@pytest.mark.parametrize("text", ["", "[]", "3", "{", '{"max_tokens": 1}', '{"max_tokens": []}', '{"end_tokens": 3}'])
def test_text_that_is_no_settings_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        config_from_text(text)
