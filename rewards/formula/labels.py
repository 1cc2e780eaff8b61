"""Labels before a value: ``x = 5``, ``f(x) = 2x``, and chains ``2 + 3 = 5``.

Only a side that can be a name is dropped. The values of all other sides must agree.
"""

from __future__ import annotations

from fractions import Fraction

from mpmath import mp

from turntree.rewards.formula.syntax.nodes import (
    Add,
    Applied,
    Big,
    Call,
    Const,
    Group,
    Mul,
    Node,
    Num,
    Pow,
    Quantity,
    Ratio,
    Rel,
    SetOp,
    Sym,
    Words,
)
from turntree.rewards.formula.syntax.problems import CannotEvaluate, Undefined
from turntree.rewards.formula.syntax.walk import free_variables, ordered, walk
from turntree.rewards.formula.values.evaluate import Evaluation
from turntree.rewards.formula.values.functions import real
from turntree.rewards.limits import LimitExceeded


def labelled(relation: Rel) -> tuple[Node | None, Node | None]:
    """Split ``name = value`` into name and value.

    Returns:
        ``(None, None)`` if neither side is a name, or the name occurs in the value.
    """
    relation = named_first(relation)
    first, last = relation.terms[0], relation.terms[-1]
    if first is None or last is None or set(relation.signs) != {"="} or not is_name(first):
        return None, None
    if isinstance(first, Sym) and first.name in free_variables(last):
        return None, None
    return first, last


def named_first(relation: Rel) -> Rel:
    """Move a name at the end of a chain of equations to its front: ``7 = x`` becomes ``x = 7``."""
    first, last = relation.terms[0], relation.terms[-1]
    if set(relation.signs) != {"="} or first is None or is_name(first) or not isinstance(last, Sym | Applied):
        return relation
    others = relation.terms[:-1]
    if isinstance(last, Sym) and any(last.name in free_variables(side) for side in others if side is not None):
        return relation
    return Rel((last, *others), relation.signs)


def as_range(node: Node) -> Node:
    """Turn a relation about a named function, ``0 < f(x) < 1``, into a relation about its values."""
    if not isinstance(node, Rel):
        return node
    return Rel(tuple(Sym("y") if isinstance(side, Applied) else side for side in node.terms), node.signs)


def same_name(one: Node, other: Node) -> bool:
    # y and f(x) count as the same name: both name the graph of a function.
    graphs = [name == Sym("y") or (isinstance(name, Applied) and name.args == (Sym("x"),)) for name in (one, other)]
    return ordered(one) == ordered(other) or (all(graphs) and Sym("y") in (one, other))


def is_name(node: Node) -> bool:
    """Return whether a node can name a value: ``x``, ``f(x)``, ``P(A)``, ``x, y``, ``V_1 : V_2``, words."""
    match node:
        case Sym() | Words() | Applied():
            return True
        case Quantity(value, unit):
            return any(character.isalpha() for character in unit) and is_name(value)
        case Mul((Sym(), argument)):
            return isinstance(argument, Sym | Num | Group) or is_name(argument)
        case Group(items, _, _, _) | Ratio(items):
            return all(is_name(item) for item in items)
        case Mul((Const("pi"), Num(value, -1))):
            return value > 1  # the number of primes
        case Call("norm"):
            return True
        case Call("abs", (Sym(name),)):
            return name.isupper() or "(" in name
        case Call("abs", (inner,)):
            return all(
                not isinstance(part, Num) and (not isinstance(part, Sym) or part.name.isupper()) for part in walk(inner)
            ) and isinstance(inner, Mul | SetOp)
    return False


def _is_linear(node: Node) -> bool:
    # A multiple or a shift of one variable is more than a name: 2x = 5 determines x.
    names = free_variables(node)
    if len(names) != 1 or not isinstance(node, Add | Mul):
        return False
    (name,) = names
    try:
        at = [real(Evaluation({name: Fraction(x)}).value(node)) for x in (0, 1, 2, 5)]
    except (CannotEvaluate, Undefined, LimitExceeded):
        return False
    slope = at[1] - at[0]
    small = abs(slope) * mp.mpf(10) ** -10
    return bool(abs(at[2] - at[1] - slope) < small and abs(at[3] - at[2] - 3 * slope) < small)


def held_chain(answer: Rel, gold: Node) -> list[Node]:
    """Return the sides of a chain that must agree: all but names and expressions in other variables."""
    sides = [side for side in named_first(answer).terms if side is not None]
    known = free_variables(gold)
    # Leading names only label the chain: in "A = x = 2 + 3 = 5" the sides from 2 + 3 on must agree.
    while len(sides) > 1:
        first = sides[0]
        own = free_variables(first)
        expression = isinstance(first, Add | Mul | Pow | Quantity | Big | Call) and not _is_linear(first)
        expression = expression and not (isinstance(first, Call) and first.name in ("abs", "norm"))
        names_value = is_name(first) or (bool(own - known) and expression)
        if not names_value:
            break
        sides.pop(0)
    return sides
