from __future__ import annotations

from typing import Any

import pytest

from turntree.spec_tree import ForestConfig


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollouts_per_state": 0}, "rollouts_per_state must be from 1 to 1073741824, got 0"),
        ({"rollouts_per_state": -3}, "rollouts_per_state must be from 1 to 1073741824, got -3"),
        ({"max_tokens": 1023}, "max_tokens must be from 1024 to 1073741824, got 1023"),
        ({"max_tokens": 2**30 + 1}, "max_tokens must be from 1024 to 1073741824, got 1073741825"),
        ({"max_tokens": 1e6}, "max_tokens must be a whole number, got 1000000.0"),
        ({"max_tokens": True}, "max_tokens must be a whole number, got True"),
        ({"max_cold_tokens": -1}, "max_cold_tokens must be from 0 to 1073741824, got -1"),
        ({"max_context_tokens": 10}, "max_context_tokens must be from 1024 to 1073741824, got 10"),
        ({"context_window": -1}, "context_window must be from 0 to 1073741824, got -1"),
        ({"context_window": "all"}, "context_window must be a whole number, got 'all'"),
        ({"end_tokens": [-1]}, "end_tokens must be token ids from 0 to 2147483647, got -1"),
        ({"end_tokens": [2**31]}, "end_tokens must be token ids from 0 to 2147483647, got 2147483648"),
        ({"end_tokens": [1.5]}, "end_tokens must be token ids from 0 to 2147483647, got 1.5"),
    ],
)
def test_a_wrong_setting_says_what_was_expected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ForestConfig(**settings)


def test_settings_from_a_file_become_immutable() -> None:
    config = ForestConfig(end_tokens=[3, 4])  # type: ignore[arg-type]
    assert config.end_tokens == frozenset({3, 4})
    hash(config)


def test_the_least_settings_are_allowed() -> None:
    ForestConfig(rollouts_per_state=1, max_tokens=1024, max_cold_tokens=0, max_context_tokens=1024, context_window=0)
