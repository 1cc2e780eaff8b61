"""Values as strict JSON has them, which knows neither NaN nor infinity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def json_value(value: Any) -> Any:
    """``value`` with null for floats that are no numbers, and text for what JSON has no word for.

    >>> json_value({1: (0.5, math.nan), "path": {"a": None}})
    {'1': [0.5, None], 'path': {'a': None}}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(entry) for entry in value]
    return value if value is None or isinstance(value, str | int) else str(value)
