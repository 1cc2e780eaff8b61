"""Call functions and write their outcomes as text.

``check`` computes the expected outcomes with it from our own source, and also runs this module's source in the sandbox,
on the policy's program. It therefore imports the standard library alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any


def outcomes(calls: Sequence[Sequence[Any]], module: Any, *, dumps: Callable[..., str] = json.dumps) -> list[str]:
    """Return what each call gives, as JSON with sorted keys: ``{"value": ...}`` or ``{"raises": "ValueError"}``.

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
        except Exception:  # a value that JSON does not have is none that we expect
            found.append("")
    return found
