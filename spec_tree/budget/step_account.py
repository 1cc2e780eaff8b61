"""Accounts that bound the time that drafts may lose against plain steps (steps without drafts)."""

from __future__ import annotations

from turntree.spec_tree.budget.plain_seconds import PlainSeconds
from turntree.spec_tree.budget.step_cost import StepCost

_MOST = 8.0  #: bound of the account, in plain steps of the longest kind seen so far
LOSS_SHARE = 0.01  #: fraction of the time that drafts may lose, trials included
_HICCUP = 2.0  #: cap of the seconds that a step is charged, as a multiple of the expected seconds
_SETTLE = 8  #: plain steps between two updates of ``PlainSeconds``


class LossAccount:
    """Seconds that drafts may still lose: a fraction of the time, plus earlier gains up to a bound.

    Because earlier gains are capped, drafts lose at most the fraction of any span of time, plus the bound.
    The bound leaves room for the losses of the first trials.

    Example:
        >>> account = LossAccount(0.01)
        >>> account.step(0.1, plain=0.1)
        >>> account.pay(0.85)
        >>> account.open
        False
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self.most = 0.0  #: cap of ``left``, seconds
        self.left = 0.0  #: balance, seconds
        self.lost = 0.0  #: total loss of drafts minus total gain, seconds

    @property
    def open(self) -> bool:
        return self.left >= 0

    def step(self, seconds: float, *, plain: float) -> None:
        """Credit the allowed fraction of a step of ``seconds``; a plain step takes ``plain`` seconds, 0 if unknown."""
        more = max(0.0, _MOST * plain - self.most)
        self.most += more
        self.left = min(self.left + more + self._share * seconds, self.most)

    def pay(self, loss: float) -> None:
        """Charge ``loss`` seconds, or credit them if negative."""
        self.lost += loss
        self.left = min(self.left - loss, self.most)


class StepAccount:
    """A ``LossAccount`` that compares steps with drafts to plain steps that emit as many tokens.

    ``PlainSeconds`` learns only from plain steps. ``StepCost`` treats a step with drafts like a plain step of more
    requests, so here it only caps hiccups of the machine.
    """

    def __init__(self, cost: StepCost, *, first: int = _SETTLE) -> None:
        """Start without measurements; plain steps are used from the ``first``-th on."""
        self._cost = cost
        self._first = first
        self._account = LossAccount(LOSS_SHARE)
        self._plain = PlainSeconds()
        self._unsettled = 0

    @property
    def open(self) -> bool:
        return self._account.open

    def charge(
        self,
        *,
        rows: int,
        tokens: int,
        emitted: int,
        seconds: float,
        drafted: bool,
        prompt_tokens: int = 0,
        counts: bool = True,
    ) -> None:
        """Charge a step with drafts, or learn from a step without.

        ``tokens`` counts all tokens that the model processed, ``emitted`` the sampled tokens. Without ``counts``, the
        step only adds its time.
        """
        plain = self._plain.seconds(rows)
        self._account.step(seconds, plain=plain)
        if not counts:
            return
        if not drafted:
            self._unsettled += self._plain.observe(rows, seconds, prompt_tokens)
            if self._unsettled >= (_SETTLE if plain > 0 else self._first):
                self._plain.settle()
                self._unsettled = 0
        elif plain > 0:
            most = _HICCUP * float(self._cost.seconds(rows, [tokens])[0])
            self._account.pay(min(seconds, most) - plain * emitted / rows)
