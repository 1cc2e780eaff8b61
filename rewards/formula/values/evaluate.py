"""Evaluation of an expression: exact fractions as long as possible, then high precision.

Every operation is bounded in size and every visited node is counted, so an evaluation ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from mpmath import mp

from turntree.rewards.formula.syntax.nodes import (
    Add,
    Applied,
    Based,
    Big,
    Call,
    Const,
    Mul,
    Node,
    Num,
    Pow,
    Quantity,
    Signed,
    Sym,
)
from turntree.rewards.formula.syntax.problems import CannotEvaluate, Undefined
from turntree.rewards.formula.values.functions import (
    Value,
    applied,
    binomial,
    factorial,
    finite,
    integer,
    logarithm,
    power,
    real,
)
from turntree.rewards.limits import MAX_BITS, MAX_STEPS, MAX_TERMS, LimitExceeded

_ONE_ARGUMENT = {
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "cot": mp.cot, "sec": mp.sec, "csc": mp.csc,
    "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan, "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh,
    "coth": mp.coth, "sech": mp.sech, "csch": mp.csch, "arcsinh": mp.asinh, "arccosh": mp.acosh, "arctanh": mp.atanh,
}  # fmt: skip


class Evaluation:
    """Evaluates trees at one point in one precision."""

    def __init__(self, point: Mapping[str, Value] | None = None, *, sign: int = 1, real_only: bool = False) -> None:
        """Set the point.

        Args:
            point: Values by variable.
            sign: Sign that plus-minus stands for, 1 or -1.
            real_only: Whether complex values, including intermediate values, count as undefined.
        """
        self.point = dict(point or {})
        self.sign = sign
        self.real_only = real_only
        self.steps = 0

    def value(self, node: Node) -> Value:
        """Compute the value of a tree.

        Raises:
            Undefined: The tree has no value.
            LimitExceeded: The value is too large, or takes too long.
            CannotEvaluate: The tree is not a number, or has an operation that this class does not compute.
        """
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise LimitExceeded("too many operations")
        match node:
            case Num(value):
                return value
            case Sym(name):
                if name not in self.point:
                    raise CannotEvaluate(f"no value for {name}")
                return self.point[name]
            case Const(name):
                return _constant(name, self.point)
            case Add(terms):
                total = self.value(terms[0])
                for term in terms[1:]:
                    total = finite(_same(total, self.value(term), lambda a, b: a + b))
                return total
            case Mul(factors):
                product = self.value(factors[0])
                for factor in factors[1:]:
                    product = finite(_same(product, self.value(factor), lambda a, b: a * b))
                return product
            case Pow(base, exponent):
                return self._checked(power(self.value(base), self.value(exponent)))
            case Signed(sign, term):
                value = self.value(term)
                return value if sign * self.sign > 0 else -value
            case Call(name, args):
                return self._call(name, args)
            case Applied(name, args):
                return applied(name, [self.value(arg) for arg in args])
            case Big():
                return self._big(node)
            case Based():
                return node.value
            case Quantity(value, "%"):
                return self.value(value) / 100
            case Quantity(value, "deg"):
                return real(self.value(value)) * mp.pi / 180
        raise CannotEvaluate(type(node).__name__)

    def _call(self, name: str, args: tuple[Node, ...]) -> Value:
        if name in ("gcd", "lcm"):
            integers = [integer(self.value(arg)) for arg in args]
            return Fraction(math.gcd(*integers) if name == "gcd" else math.lcm(*integers))
        values = [self.value(arg) for arg in args]
        first = values[0]
        if name in ("max", "min"):
            if any(isinstance(value, mp.mpc) for value in values):
                raise Undefined("complex numbers have no order")
            return (max if name == "max" else min)(values, key=real)
        if name in ("abs", "norm"):
            return abs(first)
        if name not in _ONE_ARGUMENT and isinstance(first, mp.mpc):
            raise Undefined("a complex argument")
        if name in ("floor", "ceil"):
            if isinstance(first, Fraction):
                return Fraction(math.floor(first) if name == "floor" else math.ceil(first))
            return mp.floor(first) if name == "floor" else mp.ceil(first)
        if name == "mod":
            if not (isinstance(first, Fraction) and isinstance(values[1], Fraction)):
                raise CannotEvaluate("a remainder of inexact numbers")
            if values[1] == 0:
                raise Undefined("a remainder of a division by zero")
            return first % values[1]
        if name == "factorial":
            return factorial(first)
        if name == "binom":
            return binomial(first, values[1])
        if name in ("ln", "log"):
            return self._checked(logarithm(first, values[1] if len(values) > 1 else None))
        number = real(first)
        if abs(number) > mp.mpf(10) ** 200:
            raise LimitExceeded("a huge angle")
        try:
            return self._checked(finite(_ONE_ARGUMENT[name](number)))
        except KeyError:
            raise CannotEvaluate(name) from None
        except ZeroDivisionError:
            raise Undefined(f"{name} has a pole here") from None

    def _checked(self, value: Value) -> Value:
        if self.real_only and isinstance(value, mp.mpc):
            raise Undefined("not real")
        return value

    def _big(self, node: Big) -> Value:
        low, high = self.value(node.low), self.value(node.high)
        if isinstance(low, Fraction) and isinstance(high, Fraction) and low.denominator == high.denominator == 1:
            if high - low > MAX_TERMS:
                raise LimitExceeded(f"more than {MAX_TERMS} terms")
            total: Value = Fraction(0 if node.kind == "sum" else 1)
            outer = self.point.get(node.index)
            for index in range(int(low), int(high) + 1):
                self.point[node.index] = Fraction(index)
                term = self.value(node.body)
                total = _same(total, term, (lambda a, b: a + b) if node.kind == "sum" else (lambda a, b: a * b))
            if outer is None:
                self.point.pop(node.index, None)
            else:
                self.point[node.index] = outer
            return total
        raise CannotEvaluate("a sum without integer ends")


def _constant(name: str, point: Mapping[str, Value]) -> Value:
    if name in point:
        return point[name]
    if name == "pi":
        return +mp.pi
    if name == "e":
        return +mp.e
    if name == "i":
        return mp.mpc(0, 1)
    if name == "inf":
        return mp.inf
    raise CannotEvaluate(f"the set {name}")


def _same(left: Value, right: Value, operation: Any) -> Value:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        result = operation(left, right)
        if result.denominator.bit_length() + result.numerator.bit_length() > 2 * MAX_BITS:
            raise LimitExceeded("a huge fraction")
        return result
    return operation(real(left), real(right))
