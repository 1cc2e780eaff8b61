"""Which drafts are worth verifying, learnt from the engine's own steps.

A step of B requests with n draft tokens lasts T(B, n) seconds and emits B
tokens and one for each accepted draft. The budget knows how many nodes of which
estimated probability a request is offered, how often such nodes were accepted
of late, and what a step costs; it takes the threshold with the most tokens per
second, which may be no draft at all. It begins with few drafts and more of them
only as they are accepted. Now and then it tries a little more than seems best,
or nothing, so seldom that this costs about a hundredth of the time: a policy
that sharpens, or a machine that gets busy, is noticed.

The budget only ever leaves drafts out; it cannot change what is sampled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.step_cost import Floats, StepCost

_CLASSES = 32
"""Classes of estimated probability, of the same width."""
_CENTER = (np.arange(_CLASSES) + 0.5) / _CLASSES
_PRIOR = 4.0
"""Nodes that the store's estimate, corrected for all classes alike, counts for in each."""
_TRUST = 2.0
"""Accepted nodes that the store's estimates are believed for in advance."""
_RECENT = 64.0
"""Nodes that the acceptance of a class averages over."""
_IDLE = 0.998
"""Share of what was learnt of a class that remains after a step without it."""
_FIRST_OFFER = 2.0
"""Nodes that a request is taken to be offered before any was seen."""
_LEARNING_RATE = 0.05
_FIRST_NODES = 2
"""Drafts of the first steps at least; half a draft a request where that is more."""
_FIRST_STEPS = 8
"""First steps, which draft little and nothing in turn, to learn what a draft costs."""
_PROBE_SHARE = 0.01
"""Share of the time that trying something else may cost."""
_PROBE_PAUSE = 8
"""Least steps between two trials."""
_LONG_AGO = 1 << 30


class Allowance(NamedTuple):
    """What a step may draft."""

    min_probability: float
    """Least estimated path probability of a node."""
    nodes: int
    """Nodes of the whole batch at most, the most probable ones; 0 is no draft."""


class DraftBudget:
    """Chooses what each step may draft."""

    def __init__(self, floor: float, *, cost: StepCost | None = None) -> None:
        """Start cautiously.

        Args:
            floor: Nodes of a smaller estimated path probability are never verified.
            cost: What steps cost, as far as it was measured already.
        """
        self.cost = cost or StepCost()
        self._floor = floor
        self._lowest = min(int(floor * _CLASSES), _CLASSES - 1)
        self._drafted = np.zeros(_CLASSES)
        self._accepted = np.zeros(_CLASSES)
        self._offer = np.full(_CLASSES, _FIRST_OFFER / _CLASSES)
        """Nodes of each class that a request is offered in a step."""
        self._seen = np.zeros(_CLASSES)
        """Steps in which the offer was seen whole."""
        self._window = 0.0
        """Most nodes, while little is known."""
        self._pause = 0
        self._steps = 0
        self._asked = Allowance(floor, 0)
        self._from_nothing = False
        """Whether the last step tried drafts where none seemed best."""

    def allow(self, rows: int, *, most: int | None = None) -> Allowance:
        """Decide for the next step.

        Args:
            rows: Requests that sample.
            most: Nodes of the whole batch that the engine takes at most.
        """
        allowed = self._begin(rows) if self._steps < _FIRST_STEPS else self._best(rows)
        self._asked = allowed if most is None else allowed._replace(nodes=min(allowed.nodes, most))
        return self._asked

    def _begin(self, rows: int) -> Allowance:
        self._window = max(self._window, float(_FIRST_NODES), rows / 2)
        return Allowance(1.0, 0) if self._steps % 2 else Allowance(self._floor, int(self._window))

    def _best(self, rows: int) -> Allowance:
        offer = rows * self._offer[self._lowest :][::-1]
        nodes = np.concatenate([[0.0], np.cumsum(offer)])
        emitted = rows + np.concatenate([[0.0], np.cumsum(offer * self._share()[self._lowest :][::-1])])
        rate = emitted / self.cost.seconds(rows, rows + nodes)
        best = int(np.argmax(rate))
        self._pause += 1
        trial = self._trial(rows, nodes, rate, best)
        self._from_nothing = trial is not None and best == 0
        if trial is not None:
            self._pause = 0
            return trial
        if best == 0:
            return Allowance(1.0, 0)
        return Allowance(max(self._floor, (_CLASSES - best) / _CLASSES), int(self._window))

    def observe(
        self,
        *,
        rows: int,
        tokens: int,
        estimates: NDArray[np.float32],
        accepted: NDArray[np.bool_],
        seconds: float,
    ) -> None:
        """Learn from the step that ``allow`` was last asked for.

        Args:
            rows: Requests that sampled.
            tokens: Tokens that the model ran over, drafts included.
            estimates: The store's path probability of each verified node, shape (nodes,).
            accepted: Whether the policy sampled it, shape (nodes,).
            seconds: Wall time of the step.
        """
        self._steps += 1
        self.cost.observe(rows, tokens, seconds)
        kind = np.minimum((estimates * _CLASSES).astype(np.int64), _CLASSES - 1)
        count = np.bincount(kind, minlength=_CLASSES)
        self._see_offer(rows, estimates, count)
        for kept, new in (
            (self._drafted, count),
            (self._accepted, np.bincount(kind, weights=accepted, minlength=_CLASSES)),
        ):
            kept *= _IDLE * _RECENT / (_RECENT + count)
            kept += new
        if self._from_nothing and 3 * accepted.sum() > 2 * len(accepted):
            self._pause = _LONG_AGO  # most came true: look again at once
        self._window = min(self._window + 2.0 * float(accepted.sum()), 1e6)

    def _share(self) -> NDArray[np.float64]:
        """Expected acceptance of a node of each class, shape (classes,)."""
        promised = float(self._drafted @ _CENTER)
        trust = (float(self._accepted.sum()) + _TRUST) / (promised + _TRUST)
        believed = np.minimum(trust * _CENTER, 1.0)
        return np.asarray((self._accepted + _PRIOR * believed) / (self._drafted + _PRIOR))

    def _see_offer(self, rows: int, estimates: NDArray[np.float32], count: NDArray[np.int64]) -> None:
        """Learn what is offered, where the last allowance let it be seen."""
        if not self._asked.nodes:
            return
        cut = len(estimates) >= self._asked.nodes
        edge = float(estimates.min()) if cut else self._asked.min_probability
        first = int(np.ceil(edge * _CLASSES))
        if edge <= self._floor:
            first = self._lowest
        elif first > 0 and count[first - 1]:
            self._offer[first - 1] = max(self._offer[first - 1], count[first - 1] / rows)
        self._seen[first:] += 1
        rate = np.maximum(_LEARNING_RATE, 1 / self._seen[first:])
        self._offer[first:] += rate * (count[first:] / rows - self._offer[first:])

    def _trial(self, rows: int, nodes: Floats, rate: Floats, best: int) -> Allowance | None:
        """Something else to try now: no draft, where its cost is unknown, else a few more than seems best."""
        if self._pause < _PROBE_PAUSE:
            return None
        if best and self.cost.weight(rows) < 1:
            loss, trial = 1 - float(rate[0] / rate[best]), Allowance(1.0, 0)
        elif best < len(nodes) - 1:
            more = int(np.ceil(nodes[best])) + max(1, rows // 8)
            now, then = self.cost.seconds(rows, [rows + nodes[best], rows + more])
            loss, trial = float(then / now) - 1, Allowance(self._floor, more)
        else:
            return None
        return trial if loss <= _PROBE_SHARE * self._pause else None
