"""Relative paths of a configuration, made absolute: they are meant from where the training is started, and verl's
processes run in the run's folder."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

_PLACE = re.compile(r"(^|_)(path|files?|dir|folder|data|corpus|store)$")
"""Keys of verl, of turntree and of environments whose text may be a place on this machine."""


def absolute(value: Any, key: str = "", *, model: bool = False) -> Any:
    """Plain values in which every text that names what is here is an absolute path; ids of the broker stay.

    Args:
        key: The key at which ``value`` stands.
        model: Whether the mapping around it says which engine runs its ``model``.

    >>> absolute({"path": "/tmp/../tmp", "split": "/tmp/../tmp", "data": "openai/gsm8k"})
    {'path': '/tmp', 'split': '/tmp/../tmp', 'data': 'openai/gsm8k'}
    """
    if isinstance(value, Mapping):
        return {name: absolute(inner, str(name), model="engine" in value) for name, inner in value.items()}
    if isinstance(value, list):
        return [absolute(inner, key, model=model) for inner in value]
    if isinstance(value, str) and (_PLACE.search(key) or (model and key == "model")):
        place = os.path.abspath(os.path.expanduser(value))
        return place if value and os.path.exists(place) else value
    return value
