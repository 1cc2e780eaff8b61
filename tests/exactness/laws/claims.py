from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

EXACT, NOTICED = 1e-12, 0.01
LEVEL = 1e-3  #: of the chi-square tests: an exact rule fails once in 1,000 tests; the seeds are fixed
SEEDS = range(4)  #: of the random policies; a row shows the rule's largest and the control's smallest distance


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the exactness table: a claim, its statistic, and the same statistic of a control."""

    rule: str  #: what is claimed to be exact (level D: to be described)
    level: str  #: A, B, C or D
    statistic: str  #: ``TV``, ``p`` (chi-square), ``z`` or ``differing``
    value: float
    control: str  #: the fault; empty if the row has none
    control_value: float | None  #: statistic of the faulty rule
    holds: bool  #: the rule passes and its control fails
    note: str = ""  #: power, or other findings


def enumerated(
    rule: str,
    level: str,
    distance: Callable[[int], float],
    control: str,
    control_distance: Callable[[int], float],
    note: str = "",
) -> Row:
    """Make a row of two total variations, as functions of the policies' seed."""
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
