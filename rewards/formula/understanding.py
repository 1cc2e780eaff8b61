"""Whether the verifier understands a tree by itself: decides if an ungraded comparison is the gold answer's fault.

Invariant: a policy chooses its answers, so an answer's effect on the verifier can only make it wrong.
"""

from __future__ import annotations

from itertools import chain

from turntree.rewards.formula.syntax.nodes import Const, Group, Matrix, Node, Quantity, Ratio, Rel, SetOp, Words
from turntree.rewards.formula.syntax.problems import CannotEvaluate, Undefined
from turntree.rewards.formula.syntax.walk import children, free_variables
from turntree.rewards.formula.values.evaluate import Evaluation
from turntree.rewards.formula.values.numeric import integer_points, real_points
from turntree.rewards.limits import LimitExceeded


def is_understood(node: Node) -> bool:
    """Whether every value in a tree can be computed, for some values of its variables."""
    if isinstance(node, Words | Const):
        return True
    if isinstance(node, Group | Matrix | Quantity | Ratio | Rel | SetOp):
        return all(map(is_understood, children(node)))
    names = sorted(free_variables(node))
    for point in chain(integer_points(names), real_points(names)):
        try:
            Evaluation(point).value(node)
        except (Undefined, CannotEvaluate):
            continue
        except LimitExceeded:
            return False
        return True
    return False
