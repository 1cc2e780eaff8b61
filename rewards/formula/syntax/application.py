r"""Letters before brackets: functions (``f(x)``, ``y(0)``, ``P(A)``) or factors (``n(n+1)``).

A letter that can be either is a factor, unless the answer or the gold answer uses it as a function elsewhere.
"""

from __future__ import annotations

from fractions import Fraction

from turntree.rewards.formula.syntax.nodes import (
    MINUS_ONE,
    Add,
    Applied,
    Call,
    Const,
    Group,
    Mul,
    Node,
    Num,
    Pow,
    Rel,
    SetOp,
    Sym,
    Words,
)
from turntree.rewards.formula.syntax.walk import free_variables, holds, ordered

#: operation signs that only an exercise defines
OPERATIONS = ("oplus", "otimes", "ominus", "odot", "oslash", "diamond", "circledast")
#: Names whose brackets may be square and may hold a condition after a bar.
CONDITIONAL = frozenset(str.split("P Pr E p Var Cov H I"))
_ALWAYS = frozenset(str.split("f F phi psi varphi Phi Psi Gamma Pr Var Cov Re Im"))
_OFTEN = frozenset(str.split("g G h H u y P Q"))
_NO_NAMES = frozenset(str.split("ldots dots cdots prime nabla star"))
_RUNNING = frozenset("xtsuzn")


def function_name(node: Node) -> str:
    """Return the name under which a node may be applied to an argument; empty if it cannot be applied."""
    match node:
        case Sym(name) if name not in _NO_NAMES and not name.startswith(("angle", "triangle", "overline", "widehat")):
            return name
        case Const("i" | "E" | "P" as name):
            return name
        case Pow(Sym(name), exponent) if name in _ALWAYS or (name in "gGhH" and exponent == MINUS_ONE):
            return f"{name}^{ordered(exponent)}"
        case Applied("circ", (Sym(outer), Sym(inner))):
            return f"{outer}^{inner}"
    return ""


def is_application(name: str, args: tuple[Node, ...], *, beside: bool) -> bool:
    """Return whether a name before brackets is a function of their content.

    Args:
        name: A name from ``function_name``.
        args: The content of the brackets.
        beside: Whether another letter stands directly before the name, as in a product.
    """
    letter = name.partition("_")[0]
    argument = args[0]
    if argument == Num(Fraction(0)):
        return True
    if name == "i":
        return False
    if (
        len(args) > 1
        or isinstance(argument, Rel | SetOp | Words | Group)
        or letter in _ALWAYS
        or "'" in name
        or "^" in name
    ):
        return True
    names = free_variables(argument)
    if name in names:
        return False
    if not names:
        return not beside
    if isinstance(argument, Sym):
        return not beside or argument.name in _RUNNING
    if holds(argument, Applied):
        return isinstance(argument, Applied)
    if isinstance(argument, Add):
        return letter in ("g", "h", "G", "H") and any(isinstance(term, Num) for term in argument.terms)
    return letter in _OFTEN and isinstance(argument, Mul | Pow | Call) and names <= set("xyzts")
