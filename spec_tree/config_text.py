from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, fields
from difflib import get_close_matches
from typing import Any

from turntree.spec_tree.config import ForestConfig

_MOST_TEXT = 1 << 20  #: characters of a settings text that are read


def config_to_text(config: ForestConfig) -> str:
    """Return ``config`` as a JSON object."""
    return json.dumps({**asdict(config), "end_tokens": sorted(config.end_tokens)})


def config_from_text(text: str | bytes) -> ForestConfig:
    """Return the settings that ``config_to_text`` wrote.

    Raises:
        ValueError: If the text is not a JSON object, or has an unknown key or an invalid value.
    """
    try:
        values = json.loads(text[:_MOST_TEXT])
    except RecursionError:
        raise ValueError("settings must be a JSON object, got a text nested without end") from None
    if not isinstance(values, dict):
        raise ValueError(f"settings must be a JSON object, got {text[:60]!r}")
    check_keys(values, ForestConfig, "of ForestConfig")
    try:
        return ForestConfig(**{**values, "end_tokens": frozenset(values.get("end_tokens", ()))})
    except (TypeError, OverflowError) as error:
        raise ValueError(f"a setting of ForestConfig has the wrong type: {error}") from None


def check_keys(keys: Iterable[str], settings: type[Any], where: str) -> None:
    """Reject keys that are not fields of a dataclass.

    Args:
        keys: The keys.
        settings: The dataclass.
        where: End of the message, such as ``of ForestConfig``.

    Raises:
        ValueError: If a key is unknown; the message names the nearest known one.
    """
    known = [field.name for field in fields(settings)]
    for key in keys:
        if key not in known:
            nearest = (get_close_matches(key, known, 1, 0.0) or known)[0]
            raise ValueError(f"unknown setting {key!r} {where}; the nearest is {nearest!r}")
