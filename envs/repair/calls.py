"""Calls of functions and what comes of them, as text.

The check computes what is expected with it, from our own source, and runs its source text in the sandbox on the
policy's; so it imports the standard library alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any


def outcomes(calls: Sequence[Sequence[Any]], module: Any, *, dumps: Callable[..., str] = json.dumps) -> list[str]:
    """What each call gives: ``{"value": ...}`` or ``{"raises": "ValueError"}`` as JSON, keys sorted.

    Args:
        calls: Name of a function and its arguments, each; JSON values.
        dumps: Writes JSON; bound before code of others could replace it.
    """
    found = []
    for name, *arguments in calls:
        try:
            outcome = {"value": getattr(module, name)(*arguments)}
        except Exception as error:
            outcome = {"raises": type(error).__name__}
        try:
            found.append(dumps(outcome, sort_keys=True))
        except Exception:  # a value that JSON does not have is none that we expect
            found.append("")
    return found
