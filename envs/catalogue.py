"""The environments that come with the package, one line each.

Nothing is imported before an environment is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turntree.envs.math.sets import MATH_SETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One environment of the catalogue."""

    id: str
    """``turntree/Name-v0``."""
    entry_point: str
    """``module:Class``."""
    summary: str
    """What it is, in one line."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Default arguments of the constructor."""
    needs_data: bool = False
    """Whether tasks are read from a file, a folder or the Hugging Face hub, see the argument ``data``."""


CATALOGUE: tuple[Entry, ...] = (
    Entry(
        id="turntree/Arithmetic-v0",
        entry_point="turntree.envs.arithmetic:Arithmetic",
        summary="Evaluate expressions such as 2+3*4-1, one operation a call.",
    ),
    Entry(
        id="turntree/GSM8K-v0",
        entry_point="turntree.envs.gsm8k:GSM8K",
        summary="Solve grade-school word problems with a calculator.",
        needs_data=True,
    ),
    *(
        Entry(
            id=math.env_id,
            entry_point="turntree.envs.math.env:Math",
            summary=f"{math.title}.",
            arguments={"dataset": math.name},
            needs_data=True,
        )
        for math in MATH_SETS
    ),
)
"""All of them, in the order in which they are documented."""


def find_entry(id: str) -> Entry | None:
    """The entry with this id; ``None`` for an environment of another package."""
    return next((entry for entry in CATALOGUE if entry.id == id), None)
