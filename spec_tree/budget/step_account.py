"""A ``LossAccount`` that an engine's own steps fill: those with drafts are charged by what their tokens take without.

What that is, ``PlainSeconds`` learns from steps without drafts alone: ``StepCost`` takes those with drafts of fewer
requests for alike, and here only cuts off what a hiccup of the machine added.
"""

from __future__ import annotations

from turntree.spec_tree.budget.loss_account import LossAccount
from turntree.spec_tree.budget.plain_seconds import PlainSeconds
from turntree.spec_tree.budget.step_cost import StepCost

LOSS_SHARE = 0.01
"""Share of the time that drafts may lose, trials included."""
_HICCUP = 2.0
"""Cap of the seconds by which a step is charged, as a multiple of the expected ones."""
_SETTLE = 8
"""Steps without drafts after which those since the last time count."""


class StepAccount:
    """What drafts may still lose, by the steps so far."""

    def __init__(self, cost: StepCost, *, first: int = _SETTLE) -> None:
        """Start without knowledge of steps.

        Args:
            cost: Expected seconds of steps; the caller teaches it.
            first: Steps without drafts after which the first of them count.
        """
        self._cost = cost
        self._first = first
        self._account = LossAccount(LOSS_SHARE)
        self._plain = PlainSeconds()
        self._unsettled = 0

    @property
    def open(self) -> bool:
        """Whether drafts may be made."""
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
        """Charge a step with drafts, or learn from one without.

        Args:
            tokens: Tokens that the model ran over.
            emitted: Tokens that were sampled.
            seconds: Wall time of the step.
            prompt_tokens: Prompt tokens that it processed.
            counts: Whether more than the time that passed is taken from it.
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
