"""What a draft budget chose, by the number of requests of a step: drafts, tokens gained, and what they cost.

Only for reports: the budget does not decide by it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Choice:
    """Passes over up to ``most_rows`` requests, and more than half as many."""

    most_rows: int
    """Most requests of such a pass, a power of two."""
    passes: int = 0
    rows: int = 0
    """Requests, summed over the passes."""
    drafted: int = 0
    """Draft tokens verified."""
    accepted: int = 0
    """Of these, those that the policy itself sampled."""
    seconds: float = 0.0
    """Wall time."""
    plain_seconds: float = 0.0
    """Wall time that the budget expected of the same passes without drafts."""

    def count(self, *, rows: int, drafted: int, accepted: int, seconds: float, plain: float, passes: int = 1) -> None:
        """Add a pass, or several; ``plain`` is what the budget expected without drafts, seconds."""
        self.passes += passes
        self.rows += rows
        self.drafted += drafted
        self.accepted += accepted
        self.seconds += seconds
        self.plain_seconds += plain

    @property
    def tokens_per_pass(self) -> float:
        """Tokens of one request in one pass; 1 without drafts."""
        return 1 + self.accepted / self.rows

    @property
    def cost(self) -> float:
        """Seconds of a pass as a multiple of those expected without drafts."""
        return self.seconds / self.plain_seconds

    @property
    def gain(self) -> float:
        """Tokens a second as a multiple of those without drafts."""
        return self.tokens_per_pass / self.cost


def summed(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    """One sum for each number of requests, in order.

    >>> [(one.most_rows, one.passes) for one in summed([Choice(most_rows=8, passes=2), Choice(most_rows=8, passes=1)])]
    [(8, 3)]
    """
    sums: dict[int, Choice] = {}
    for one in choices:
        sums.setdefault(one.most_rows, Choice(most_rows=one.most_rows)).count(
            passes=one.passes,
            rows=one.rows,
            drafted=one.drafted,
            accepted=one.accepted,
            seconds=one.seconds,
            plain=one.plain_seconds,
        )
    return tuple(sums[most] for most in sorted(sums))


def most_rows(rows: int) -> int:
    """The power of two that is not below ``rows``.

    >>> [most_rows(rows) for rows in (1, 2, 3, 8, 9, 128)]
    [1, 2, 4, 8, 16, 128]
    """
    return 1 << (rows - 1).bit_length()
