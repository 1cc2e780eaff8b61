"""What drafts may still lose: a share of the time, and what they gained before, up to a bound.

Gains of the past do not pay for losses without bound: in any segment of time drafts lose at most that share of it and
the bound. The first loss is paid from the bound.
"""

from __future__ import annotations

_MOST = 8.0
"""The bound, in steps without drafts of the longest kind so far."""


class LossAccount:
    """Seconds that drafts may still lose.

    Example:
        >>> account = LossAccount(0.01)
        >>> account.step(0.1, plain=0.1)
        >>> account.pay(0.85)
        >>> account.open
        False
    """

    def __init__(self, share: float) -> None:
        """Start without knowledge of steps.

        Args:
            share: Of the time, that drafts may lose.
        """
        self._share = share
        self.most = 0.0
        """Most seconds of the account."""
        self.left = 0.0
        """Seconds of it."""
        self.lost = 0.0
        """What drafts lost in all, less what they gained, seconds."""

    @property
    def open(self) -> bool:
        """Whether drafts may be made."""
        return self.left >= 0

    def step(self, seconds: float, *, plain: float) -> None:
        """A step lasted so long; one without drafts takes ``plain``, 0 if unknown."""
        more = max(0.0, _MOST * plain - self.most)
        self.most += more
        self.left = min(self.left + more + self._share * seconds, self.most)

    def pay(self, loss: float) -> None:
        """Drafts lost so many seconds, or gained them where it is negative."""
        self.lost += loss
        self.left = min(self.left - loss, self.most)
