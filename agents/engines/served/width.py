"""Choice of a step's width, the tokens that each request takes in a pass, learned from the engine's own steps.

All requests of a pass have the same width, and each costs that many tokens, with or without a draft. The chooser takes
the width that gives the batch the most tokens per second: the expected tokens over the time of a pass of that width.
Expected tokens include the nodes (draft tokens) likely to be accepted, by the recent acceptance of nodes with the same
estimate. The choice depends only on nodes, acceptance and reported seconds, so choosers with the same input agree.

A ``StepAccount`` bounds the time that wider passes may lose against passes without drafts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree import DraftBatch
from turntree.spec_tree.budget.step_account import StepAccount
from turntree.spec_tree.budget.step_cost import StepCost

Floats = NDArray[np.float64]

_CLASSES = 16  #: equal intervals of [0, 1] by which nodes are grouped, by estimated probability
_CENTER = (np.arange(_CLASSES) + 0.5) / _CLASSES
_PRIOR = 4.0  #: weight of the store's own estimate, as if seen in this many nodes
_RECENT = 0.98  #: factor on earlier counts after each step with drafts, so that recent steps count most
_PROBE_SHARE = 0.01  #: fraction of the time that trying other widths may cost


class WidthChooser:
    def __init__(self, widths: tuple[int, ...]) -> None:
        """Start from the store's estimates; ``widths`` ascend from the width of a step without drafts."""
        self.cost = StepCost()
        self._widths = np.array(widths)
        self._drafted = np.zeros(_CLASSES)
        self._accepted = np.zeros(_CLASSES)
        self._pause = 0
        self._account = StepAccount(self.cost)

    def choose(self, draft: DraftBatch) -> int:
        """Return the width of the next step. Each row of ``draft`` has its likeliest nodes first."""
        most = int(np.diff(draft.offsets).max(initial=0))
        if most == 0 or not self._account.open:
            return int(self._widths[0])
        fits = int(np.searchsorted(self._widths, most + 1))
        widths = self._widths[: fits + 1]
        rate = self._rates(draft, widths)
        best = int(np.argmax(rate))
        self._pause += 1
        other = self._untried(best, draft.rows, widths)
        if other is not None and 1 - rate[other] / rate[best] <= _PROBE_SHARE * self._pause:
            best, self._pause = other, 0
        return int(widths[best])

    @property
    def observed(self) -> float:
        """Effective number of observed nodes: recent nodes count in full, earlier nodes less."""
        return float(self._drafted.sum())

    def _rates(self, draft: DraftBatch, widths: NDArray[np.int64]) -> Floats:
        rows = draft.rows
        counts = np.diff(draft.offsets)
        rank = np.arange(len(draft.tokens)) - np.repeat(draft.offsets[:-1], counts)
        worth = self._share()[_classes(draft.probabilities)]
        by_rank = np.bincount(rank, weights=worth, minlength=int(widths[-1]))
        expected = np.concatenate([[0.0], np.cumsum(by_rank)])[widths - 1]
        return np.asarray((rows + expected) / self.cost.seconds(rows, rows * widths))

    def _untried(self, best: int, rows: int, widths: NDArray[np.int64]) -> int | None:
        # the plain step if its cost was never measured, else the next wider step
        if best > 0 and self.cost.weight(rows * int(widths[0])) < 1:
            return 0
        return best + 1 if best + 1 < len(widths) else None

    def observe(self, *, rows: int, width: int, estimates: Floats, accepted: NDArray[np.bool_], seconds: float) -> None:
        """Learn from a step.

        ``estimates`` has the store's path probability of each verified node, ``accepted`` whether the policy sampled
        it. ``seconds`` may be NaN if unknown.
        """
        if seconds == seconds:
            self._account.charge(
                rows=rows,
                tokens=rows * width,
                emitted=rows + int(accepted.sum()),
                seconds=seconds,
                drafted=width > self._widths[0],
            )
            self.cost.observe(rows, rows * width, seconds)
        if not len(estimates):
            return
        kind = _classes(estimates)
        for kept, new in (
            (self._drafted, np.bincount(kind, minlength=_CLASSES)),
            (self._accepted, np.bincount(kind, weights=accepted, minlength=_CLASSES)),
        ):
            kept *= _RECENT
            kept += new

    def _share(self) -> Floats:
        # expected acceptance of a node of each class
        expected = float(self._drafted @ _CENTER)
        trust = (float(self._accepted.sum()) + _PRIOR) / (expected + _PRIOR)
        believed = np.minimum(trust * _CENTER, 1.0)
        return np.asarray((self._accepted + _PRIOR * believed) / (self._drafted + _PRIOR))


def _classes(estimates: NDArray[np.floating]) -> NDArray[np.int64]:  # type: ignore[type-arg]
    return np.minimum((estimates * _CLASSES).astype(np.int64), _CLASSES - 1)
