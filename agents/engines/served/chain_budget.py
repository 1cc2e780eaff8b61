from __future__ import annotations

from turntree.agents.engines.drafting.chain_rows import StepResult
from turntree.agents.engines.drafting.step_bound import most_drafted
from turntree.agents.engines.served.settings import DraftSettings
from turntree.spec_tree.budget.draft_budget import Allowance, DraftBudget

#: maximum prompt tokens of a step to learn from, constant and per sampling request; more would hide the drafts' cost
_READ, _READ_BY_ROW = 16, 4


class ChainBudget:
    """Bounds the drafts of each step and learns their gain from the engine's own steps.

    A step lasts from one call of the drafter to the next: the time that the requests wait for it. A step counts only if
    drafts were requested for all of its turns; otherwise the engine may have been idle before the step.
    """

    def __init__(self, settings: DraftSettings, deepest: int, most_tokens: int, *, device: str = "cpu") -> None:
        self._settings = settings
        self._deepest = deepest
        self._most = most_tokens
        self._device = device
        self._budget = DraftBudget(settings.min_probability) if settings.adaptive else None
        self._began = 0.0

    def most(self, rows: int) -> int:
        """Return the maximum draft tokens of the next step of ``rows`` requests, from the store and callers."""
        within = max(0, min(self._deepest * rows, self._most - rows))
        return most_drafted(self._settings.max_step_tokens, rows, device=self._device, most=within)

    def allow(self, rows: int, *, turn_drafted: int = 0) -> Allowance:
        """Return the limits of the store's drafts in the next step, given the tokens of callers' drafts."""
        most = max(0, self.most(rows) - turn_drafted)
        if self._budget is None:
            return Allowance(self._settings.min_probability, most)
        return self._budget.allow(rows, most=most)

    def rests(self, rows: int) -> bool:
        """Return whether the store will draft nothing in the next step of ``rows`` requests."""
        return self._budget is not None and self._budget.rests(rows)

    def learn(self, step: StepResult, began: float, *, read: int | None) -> None:
        """Learn from the step that just ended; call it before drafting for the next one.

        ``began`` is when the drafter was called after the step (monotonic seconds), ``read`` the number of prompt
        tokens processed in it, ``None`` if unknown.
        """
        seconds, self._began = began - self._began, began
        if self._budget is None or not step.whole or read is None or read > _READ_BY_ROW * step.rows + _READ:
            return
        self._budget.observe(
            rows=step.rows,
            tokens=step.rows + read + len(step.accepted),
            estimates=step.estimates,
            accepted=step.accepted,
            seconds=seconds,
        )
