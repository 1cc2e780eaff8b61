"""Draft budget: which drafts are worth verifying, learned from the engine's own steps.

A step of B requests with n draft tokens takes T(B, n) seconds and emits B tokens plus one per accepted draft token.
A node is one token of a draft tree. The budget groups nodes into classes by the probability that the store estimates.
Per class, the budget tracks how many nodes the store offers per request and how many of these were accepted recently.
With the cost of a step, this gives the threshold with the most tokens per second, which may be no draft at all.

About a hundredth of the time goes into trials: steps with slightly more drafts than seems best, or with none. Trials
show when the policy becomes more confident or the machine busy. While no draft pays, the budget decides and learns only
once per ``REST`` steps, and in trials. A ``StepAccount`` bounds the time that drafts may lose against plain steps
(steps without drafts).

The budget only leaves drafts out, so it cannot change the sampled tokens.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.budget.step_account import StepAccount
from turntree.spec_tree.budget.step_cost import StepCost, expected_seconds
from turntree.spec_tree.kernels.compiled import kernel, part

_CLASSES = 32  #: classes of estimated probability, of equal width
_PRIOR = 4.0  #: weight, in nodes, of the store's estimate in a class, after its correction by ``trust``
_TRUST = 2.0  #: weight, in accepted nodes, of the prior trust in the store's estimates
_RECENT = 64.0  #: nodes over which the acceptance rate of a class is averaged
IDLE = 0.998  #: factor on a class's statistics after a step without nodes of this class
_FIRST_OFFER = 2.0  #: nodes assumed to be offered per request before the first draft
_LEARNING_RATE = 0.05
_FIRST_NODES = 2  #: draft tokens per batch in the first steps, or half a token per request if that is more
_FIRST_STEPS = 8  #: first steps, which alternate between few drafts and none to learn the cost of a draft
_PROBE_SHARE = 0.01  #: fraction of the time that trials may cost
PROBE_PAUSE = 8  #: fewest steps between two trials
#: maximum steps for which a decision not to draft holds, once the cost of plain steps is known; a due trial ends it
REST = 4
_OFTEN = 10.0  #: recent steps without drafts after which their cost is known well enough to rest
_LONG_AGO = 1 << 30
#: factor below 1 on the expected acceptances: measured costs are noisy, so where gain and cost are nearly equal (many
#: requests on a CPU), an expected gain may really be a loss
_CAUTION = 0.9


class Allowance(NamedTuple):
    """Limits on the drafts of a step."""

    min_probability: float  #: minimum estimated path probability of a node
    nodes: int  #: maximum nodes of the whole batch, the most probable first; 0 means no draft


_NOTHING = Allowance(1.0, 0)

#: statistics of the drafts by class, as the kernels read and write them
SEEN = np.dtype(
    [
        ("drafted", np.float64, _CLASSES),
        ("accepted", np.float64, _CLASSES),
        ("offer", np.float64, _CLASSES),  # average nodes that the store offers per request and step
        ("looks", np.float64, _CLASSES),  # steps whose threshold cut off no node of the class
        ("count", np.float64, _CLASSES),  # nodes of the last step
        ("hits", np.float64, _CLASSES),  # accepted nodes of the last step
        ("nodes", np.float64, _CLASSES + 1),  # nodes of a step that drafts the i most probable classes
        ("rate", np.float64, _CLASSES + 1),  # expected tokens per second of that step
    ]
)


@part
def _center(kind: int) -> float:
    return (kind + 0.5) / _CLASSES


@kernel
def _choose(seen: NDArray[np.void], cost: NDArray[np.void], rows: float, lowest: int) -> int:
    # A class's acceptance rate is its recent rate. If few of its nodes were seen, it is the store's estimate times
    # ``trust``, the ratio of accepted to expected nodes over all classes.
    one = seen[0]
    expected_nodes, accepted_nodes = 0.0, 0.0
    for kind in range(_CLASSES):
        expected_nodes += one.drafted[kind] * _center(kind)
        accepted_nodes += one.accepted[kind]
    trust = (accepted_nodes + _TRUST) / (expected_nodes + _TRUST)
    nodes, emitted, best = 0.0, rows, 0
    one.nodes[0], one.rate[0] = 0.0, rows / expected_seconds(cost[0], rows, rows)
    for taken in range(1, _CLASSES - lowest + 1):
        kind = _CLASSES - taken
        believed = min(trust * _center(kind), 1.0)
        share = (one.accepted[kind] + _PRIOR * believed) / (one.drafted[kind] + _PRIOR)
        nodes += rows * one.offer[kind]
        emitted += _CAUTION * rows * one.offer[kind] * share
        one.nodes[taken], one.rate[taken] = nodes, emitted / expected_seconds(cost[0], rows, rows + nodes)
        if one.rate[taken] > one.rate[best]:
            best = taken
    return best


@kernel
def _learn(
    seen: NDArray[np.void],
    estimates: NDArray[np.float32],
    accepted: NDArray[np.bool_],
    rows: float,
    asked: Allowance,
    floor: float,
    lowest: int,
) -> int:
    one = seen[0]
    least, accepted_nodes = 1.0, 0
    for kind in range(_CLASSES):
        one.count[kind], one.hits[kind] = 0.0, 0.0
    for i in range(len(estimates)):
        kind = min(int(estimates[i] * _CLASSES), _CLASSES - 1)
        least = min(least, float(estimates[i]))
        one.count[kind] += 1.0
        if accepted[i]:
            one.hits[kind] += 1.0
            accepted_nodes += 1
    if asked.nodes > 0:
        _see_offer(one, rows, least if len(estimates) >= asked.nodes else asked.min_probability, floor, lowest)
    for kind in range(_CLASSES):
        kept = IDLE * _RECENT / (_RECENT + one.count[kind])
        one.drafted[kind] = kept * one.drafted[kind] + one.count[kind]
        one.accepted[kind] = kept * one.accepted[kind] + one.hits[kind]
    return accepted_nodes


@part
def _see_offer(one: Any, rows: float, edge: float, floor: float, lowest: int) -> None:
    # Of classes below ``edge``, the threshold cut nodes off, so the counts of those classes are only a lower bound.
    first = int(np.ceil(edge * _CLASSES))
    if edge <= floor:
        first = lowest
    elif first > 0 and one.count[first - 1] > 0.0:
        one.offer[first - 1] = max(one.offer[first - 1], one.count[first - 1] / rows)
    for kind in range(first, _CLASSES):
        one.looks[kind] += 1.0
        rate = max(_LEARNING_RATE, 1.0 / one.looks[kind])
        one.offer[kind] += rate * (one.count[kind] / rows - one.offer[kind])


class DraftBudget:
    def __init__(self, floor: float) -> None:
        """Start with few drafts; nodes with a path probability below ``floor`` are never verified."""
        _get_ready()
        self.cost = StepCost()
        self._floor = float(floor)
        self._lowest = min(int(floor * _CLASSES), _CLASSES - 1)
        self._seen = np.zeros(1, SEEN)
        self._seen["offer"] = _FIRST_OFFER / _CLASSES
        self._window = 0.0  #: maximum nodes of a step while little is known about acceptance
        self._pause = 0  #: steps since the last trial
        self._due: float = PROBE_PAUSE  #: value of ``_pause`` at which the next trial is due
        self._steps = 0
        self._rest = 0  #: remaining steps of ``_rested`` requests that need no new decision and get no drafts
        self._rested = 0
        self._resting = False  #: whether the last step was such a step
        self._asked = Allowance(self._floor, 0)
        self._from_nothing = False  #: whether the last step tried drafts although none seemed best
        self._account = StepAccount(self.cost, first=_FIRST_STEPS // 2)

    def allow(self, rows: int, *, most: int | None = None) -> Allowance:
        """Decide how much the next step may draft; ``most`` caps the nodes of the whole batch."""
        self._resting = self.rests(rows)
        if self._resting:
            self._rest -= 1
            self._pause += 1
            return _NOTHING
        self._rest = 0  # the number of requests may have changed, which ends the rest
        allowed = self._begin(rows) if self._steps < _FIRST_STEPS else self._best(rows)
        self._asked = allowed if most is None else allowed._replace(nodes=min(allowed.nodes, most))
        return self._asked

    def rests(self, rows: int) -> bool:
        """Return whether an earlier decision already rules out drafts in the next step of ``rows`` requests."""
        return self._rest > 0 and rows == self._rested

    def _begin(self, rows: int) -> Allowance:
        self._window = max(self._window, float(_FIRST_NODES), rows / 2)
        return _NOTHING if self._steps % 2 else Allowance(self._floor, int(self._window))

    def _best(self, rows: int) -> Allowance:
        best = int(_choose(self._seen, self.cost.record, float(rows), self._lowest))
        self._pause += 1
        self._from_nothing = False
        if not self._account.open:
            return _NOTHING
        trial = self._trial(rows, best)
        self._from_nothing = trial is not None and best == 0
        if trial is not None:
            self._pause = 0
            return trial
        if best == 0:
            known = self.cost.weight(rows) > _OFTEN
            self._rest = min(REST, math.ceil(self._due) - self._pause) - 1 if known else 0
            self._rested = rows
            return _NOTHING
        return Allowance(max(self._floor, (_CLASSES - best) / _CLASSES), int(self._window))

    def observe(
        self, *, rows: int, tokens: int, estimates: NDArray[np.float32], accepted: NDArray[np.bool_], seconds: float
    ) -> None:
        """Learn from the step for which ``allow`` was last called.

        ``tokens`` counts all tokens that the model processed. ``estimates`` has the path probability that the store
        estimated for each verified node, ``accepted`` whether the policy sampled the node's token.
        """
        self._steps += 1
        if self._resting:
            self._charge(rows, tokens, seconds)
            return
        accepted_nodes = _learn(
            self._seen,
            np.ascontiguousarray(estimates, np.float32),
            np.ascontiguousarray(accepted, np.bool_),
            float(rows),
            self._asked,
            self._floor,
            self._lowest,
        )
        self._charge(rows, tokens, seconds, drafted=len(accepted), accepted=accepted_nodes)
        self.cost.observe(rows, tokens, seconds)
        if self._from_nothing and 3 * accepted_nodes > 2 * len(accepted):
            self._pause = _LONG_AGO  # most drafts of the trial were accepted: try again at once
        self._window = min(self._window + 2.0 * accepted_nodes, 1e6)

    def _charge(self, rows: int, tokens: int, seconds: float, *, drafted: int = 0, accepted: int = 0) -> None:
        self._account.charge(
            rows=rows,
            tokens=tokens,
            emitted=rows + accepted,
            seconds=seconds,
            drafted=drafted > 0,
            prompt_tokens=tokens - rows - drafted,
            counts=self._steps > (_FIRST_STEPS if drafted else 1),
        )

    def _trial(self, rows: int, best: int) -> Allowance | None:
        # a plain step if its cost is unknown, else a few more nodes than seems best
        self._due = PROBE_PAUSE
        if self._pause < PROBE_PAUSE:
            return None
        nodes, rate = self._seen[0]["nodes"], self._seen[0]["rate"]
        if best and self.cost.weight(rows) < 1:
            loss, trial = 1 - float(rate[0] / rate[best]), _NOTHING
        elif best < _CLASSES - self._lowest:
            more = int(np.ceil(nodes[best])) + max(1, rows // 8)
            now, then = self.cost.seconds(rows, [rows + nodes[best], rows + more])
            loss, trial = float(then / now) - 1, Allowance(self._floor, more)
        else:
            return None
        self._due = loss / _PROBE_SHARE
        return trial if loss <= _PROBE_SHARE * self._pause else None


@cache
def _get_ready() -> None:
    # Compile or load the kernels now, so that no engine step waits for the compiler.
    seen, cost = np.zeros(1, SEEN), StepCost()
    cost.observe(1, 1, 1.0)
    cost.seconds(1, [1])
    _choose(seen, cost.record, 1.0, 0)
    _learn(seen, np.zeros(0, np.float32), np.zeros(0, np.bool_), 1.0, _NOTHING, 0.0, 0)
