"""Whether the verifier understands the gold answer by itself; if it does, a failed comparison is wrong.

The policy chooses its answers, so an answer that the verifier cannot handle must never become ungraded.
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
    """Return whether every value in a tree can be computed for some values of its variables."""
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
