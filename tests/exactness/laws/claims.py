"""One row of the exactness table: a claim, its statistic, and the same statistic of a control."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

EXACT, NOTICED = 1e-12, 0.01
LEVEL = 1e-3
"""Of the chi-square tests: an exact rule fails one in 1,000 times; the seeds are fixed."""
SEEDS = range(4)
"""Of the random policies; a rule's worst TV and a control's least count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One claim and its control."""

    rule: str
    """What is claimed to be exact (or, for level D, to be described)."""
    level: str
    """A, B, C or D."""
    statistic: str
    """``TV``, ``p`` (chi-square), ``z`` or ``differing``."""
    value: float
    """Of the rule."""
    control: str
    """The fault; empty where a row has none."""
    control_value: float | None
    """The same statistic of the faulty rule."""
    holds: bool
    """The rule passes, and its control fails."""
    note: str = ""
    """Power, or what else was found."""


def enumerated(
    rule: str,
    level: str,
    distance: Callable[[int], float],
    control: str,
    control_distance: Callable[[int], float],
    note: str = "",
) -> Row:
    """A row from two functions of the policies' seed."""
    value = max(distance(seed) for seed in SEEDS)
    broken = min(control_distance(seed) for seed in SEEDS)
    return Row(
        rule=rule,
        level=level,
        statistic="TV",
        value=value,
        control=control,
        control_value=broken,
        holds=value < EXACT and broken > NOTICED,
        note=note,
    )
