"""Call functions and write their outcomes as text.

This module runs in two places: in this process on the right program, to compute the expected outcomes, and in the
sandbox on the policy's program. It therefore imports only the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any


def outcomes(calls: Sequence[Sequence[Any]], module: Any, *, dumps: Callable[..., str] = json.dumps) -> list[str]:
    """Return the outcome of each call as JSON, sorted keys: ``{"value": ...}`` or ``{"raises": "ValueError"}``.

    ``dumps`` writes JSON and must be bound before untrusted code could replace it.
    """
    found = []
    for name, *arguments in calls:
        try:
            outcome = {"value": getattr(module, name)(*arguments)}
        except Exception as error:
            outcome = {"raises": type(error).__name__}
        try:
            found.append(dumps(outcome, sort_keys=True))
        except Exception:  # JSON cannot express the value, so it is not the expected value
            found.append("")
    return found
