"""A forest's settings as text, for files and shared memory."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from difflib import get_close_matches

from turntree.spec_tree.config import ForestConfig


def config_to_text(config: ForestConfig) -> str:
    """``config`` as a JSON object."""
    return json.dumps({**asdict(config), "end_tokens": sorted(config.end_tokens)})


def config_from_text(text: str | bytes) -> ForestConfig:
    """The settings that ``config_to_text`` wrote.

    Raises:
        ValueError: If the text is no JSON object, or has an unknown key or a value that is not allowed.
    """
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError(f"settings must be a JSON object, got {text[:60]!r}")
    known = [field.name for field in fields(ForestConfig)]
    for key in values:
        if key not in known:
            nearest = (get_close_matches(key, known, 1, 0.0) or known)[0]
            raise ValueError(f"unknown setting {key!r} of ForestConfig; the nearest is {nearest!r}")
    try:
        return ForestConfig(**{**values, "end_tokens": frozenset(values.get("end_tokens", ()))})
    except TypeError as error:
        raise ValueError(f"a setting of ForestConfig has the wrong type: {error}") from None
