"""Labels before a value: ``x = 5``, ``f(x) = 2x``, and chains ``2 + 3 = 5``.

Invariant: only what can be a name is dropped; a side with its own value must hold.
"""

from __future__ import annotations

from fractions import Fraction

from mpmath import mp

from turntree.rewards.formula.syntax.nodes import (
    Add,
    Applied,
    Big,
    Call,
    Group,
    Mul,
    Node,
    Num,
    Pow,
    Quantity,
    Ratio,
    Rel,
    Sym,
    Words,
)
from turntree.rewards.formula.syntax.problems import CannotEvaluate, Undefined
from turntree.rewards.formula.syntax.walk import free_variables
from turntree.rewards.formula.values.evaluate import Evaluation
from turntree.rewards.formula.values.functions import real
from turntree.rewards.limits import LimitExceeded


def labelled(relation: Rel) -> tuple[Node | None, Node | None]:
    """The name and the value of ``name = value``.

    Returns:
        ``(None, None)`` if the left side is not a name, or occurs on the right.
    """
    first, last = relation.terms[0], relation.terms[-1]
    if first is None or last is None or set(relation.signs) != {"="} or not is_name(first):
        return None, None
    if isinstance(first, Sym) and first.name in free_variables(last):
        return None, None
    return first, last


def is_name(node: Node) -> bool:
    """Whether a node can be the name of a value: ``x``, ``f(x)``, ``P(A)``, ``x, y``, ``V_1 : V_2``, words."""
    match node:
        case Sym() | Words() | Applied():
            return True
        case Quantity(value, unit):
            return any(character.isalpha() for character in unit) and is_name(value)
        case Mul((Sym(), argument)):
            return isinstance(argument, Sym | Num | Group) or is_name(argument)
        case Group(items, _, _, _) | Ratio(items):
            return all(is_name(item) for item in items)
        case Call("abs", (Sym(name),)):
            return name.isupper()
        case Call("abs", (Mul(factors),)):
            return all(isinstance(factor, Sym) and factor.name.isupper() for factor in factors)
    return False


def _is_linear(node: Node) -> bool:
    """Whether a side is a multiple or a shift of one variable, so that the equation says what this is: ``2x = 5``."""
    names = free_variables(node)
    if len(names) != 1 or not isinstance(node, Add | Mul):
        return False
    (name,) = names
    try:
        at = [real(Evaluation({name: Fraction(place)}).value(node)) for place in (0, 1, 2, 5)]
    except (CannotEvaluate, Undefined, LimitExceeded):
        return False
    slope = at[1] - at[0]
    small = abs(slope) * mp.mpf(10) ** -10
    return bool(abs(at[2] - at[1] - slope) < small and abs(at[3] - at[2] - 3 * slope) < small)


def held_chain(answer: Rel, gold: Node) -> list[Node]:
    """The sides of a chain that must have the same value; names and expressions with other variables are left out."""
    sides = [side for side in answer.terms if side is not None]
    known = free_variables(gold)
    while len(sides) > 1:
        first = sides[0]
        own = free_variables(first)
        expression = isinstance(first, Add | Mul | Pow | Quantity | Big | Call) and not _is_linear(first)
        expression = expression and not (isinstance(first, Call) and first.name == "abs")
        names_value = is_name(first) or (bool(own - known) and expression)
        if not names_value:
            break
        sides.pop(0)
    return sides
