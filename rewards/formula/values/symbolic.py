"""Comparison by sympy, the last resort, of syntax trees that this package parsed.

sympy is given objects, never text, because sympy's parser runs code. The worker's deadline ends endless
simplifications.
"""

from __future__ import annotations

from typing import Any

from turntree.rewards.formula.syntax.nodes import Add, Big, Call, Const, Mul, Node, Num, Pow, Quantity, Sym, Undone
from turntree.rewards.formula.syntax.problems import CannotEvaluate
from turntree.rewards.formula.syntax.walk import ordered
from turntree.rewards.limits import MAX_BITS

_FUNCTIONS = "sin cos tan cot sec csc sinh cosh tanh coth sech csch max min gcd lcm floor factorial"
_NAMES = {
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "ceil": "ceiling",
    "abs": "Abs",
    "max": "Max",
    "min": "Min",
}


def equal_by_sympy(gold: Node, answer: Node) -> bool | None:
    """Return ``True`` if the difference simplifies to 0 or only the order differs, else ``None``."""
    if ordered(gold) == ordered(answer):
        return True
    import sympy

    try:
        difference = sympy.simplify(_built(gold) - _built(answer))
    except (CannotEvaluate, TypeError, ValueError, NotImplementedError, AttributeError, ArithmeticError):
        return None
    return True if difference == 0 else None


def _power(base: Any, exponent: Any) -> Any:
    # sympy computes all digits of exact powers, so bound their size here.
    import sympy

    exact = base.is_Rational and exponent.is_Rational
    if exact and abs(exponent) * max(base.p.bit_length(), base.q.bit_length()) > MAX_BITS:
        raise CannotEvaluate("a huge power")
    return sympy.Pow(base, exponent)


def _built(node: Node) -> Any:
    import sympy

    match node:
        case Num(value):
            return sympy.Rational(value.numerator, value.denominator)
        case Sym(name):
            return sympy.Symbol(name, real=True)
        case Const("pi" | "e" | "i" | "inf" as name):
            return {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "inf": sympy.oo}[name]
        case Add(terms):
            return sympy.Add(*(_built(term) for term in terms))
        case Mul(factors):
            return sympy.Mul(*(_built(factor) for factor in factors))
        case Pow(base, exponent):
            return _power(_built(base), _built(exponent))
        case Quantity(value, "%"):
            return _built(value) / 100
        case Call("ln", (argument,)):
            return sympy.log(_built(argument))
        case Call("log", (argument, base)):
            return sympy.log(_built(argument), _built(base))
        case Call("binom", (above, below)):
            return sympy.binomial(_built(above), _built(below))
        case Call(name, args) if name in _NAMES or name in _FUNCTIONS.split():
            return getattr(sympy, _NAMES.get(name, name))(*(_built(arg) for arg in args))
        case Big(kind, index, low, high, body):
            limits = (sympy.Symbol(index, real=True), _built(low), _built(high))
            return (sympy.Sum if kind == "sum" else sympy.Product)(_built(body), limits)
        case Undone("int", (low, high, Mul(factors))) if isinstance(factors[-1], Sym) and factors[-2:-1] == (Sym("d"),):
            variable = sympy.Symbol(factors[-1].name, real=True)
            return sympy.Integral(_built(Mul(factors[:-2])), (variable, _built(low), _built(high)))
    raise CannotEvaluate(type(node).__name__)
