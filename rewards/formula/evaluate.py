"""The value of an expression: exact fractions as long as possible, else high precision.

Invariant: every operation is bounded in size, and every visited node is counted, so an evaluation ends.
Infinite and undefined values are told apart from large ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from mpmath import mp

from turntree.rewards.formula.nodes import (
    Add,
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
from turntree.rewards.formula.problems import CannotEvaluate, Undefined
from turntree.rewards.limits import (
    MAX_BITS,
    MAX_FACTORIAL,
    MAX_GAMMA,
    MAX_POWER_BITS,
    MAX_STEPS,
    MAX_TERMS,
    LimitExceeded,
)

Value = Any
"""A ``Fraction``, or an mpmath number of the working precision."""
_ODD_ROOTS = (3, 5, 7, 9)
_ANGLES = frozenset(["sin", "cos", "tan", "cot", "sec", "csc"])
_ONE_ARGUMENT = {
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "cot": mp.cot, "sec": mp.sec, "csc": mp.csc,
    "arcsin": mp.asin, "arccos": mp.acos, "arctan": mp.atan, "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh,
}  # fmt: skip


class Evaluation:
    """Evaluates trees at one point in one precision."""

    def __init__(self, point: Mapping[str, Value] | None = None, *, sign: int = 1, real_only: bool = False) -> None:
        """Choose the point.

        Args:
            point: Values of the variables.
            sign: Which of both signs a double sign means, 1 or -1.
            real_only: Whether a value that is not real counts as undefined, on the way as well.
        """
        self.point = dict(point or {})
        self.sign = sign
        self.real_only = real_only
        self.steps = 0

    def value(self, node: Node) -> Value:
        """The value of a tree.

        Raises:
            Undefined: There is none.
            LimitExceeded: It is too large, or takes too long.
            CannotEvaluate: The tree is no number, or has an operation that is not carried out here.
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
                    total = _finite(_same(total, self.value(term), lambda a, b: a + b))
                return total
            case Mul(factors):
                product = self.value(factors[0])
                for factor in factors[1:]:
                    product = _finite(_same(product, self.value(factor), lambda a, b: a * b))
                return product
            case Pow(base, exponent):
                return self._checked(power(self.value(base), self.value(exponent)))
            case Signed(sign, term):
                value = self.value(term)
                return value if sign * self.sign > 0 else -value
            case Call(name, args):
                return self._call(name, args)
            case Big():
                return self._big(node)
            case Based(digits, base):
                return Fraction(int(digits, base))
            case Quantity(value, "%"):
                return self.value(value) / 100
            case Quantity(value, "deg"):
                return real(self.value(value)) * mp.pi / 180
        raise CannotEvaluate(type(node).__name__)

    def _call(self, name: str, args: tuple[Node, ...]) -> Value:
        if name in ("gcd", "lcm"):
            integers = [_integer(self.value(arg)) for arg in args]
            return Fraction(math.gcd(*integers) if name == "gcd" else math.lcm(*integers))
        values = [self.value(arg) for arg in args]
        first = values[0]
        if name in ("max", "min"):
            if any(isinstance(value, mp.mpc) for value in values):
                raise Undefined("complex numbers have no order")
            return (max if name == "max" else min)(values, key=real)
        if name == "abs":
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
            return _factorial(first)
        if name == "binom":
            return _binomial(first, values[1])
        if name in ("ln", "log"):
            return self._checked(_logarithm(first, values[1] if len(values) > 1 else None))
        number = real(first)
        if abs(number) > mp.mpf(10) ** 200:
            raise LimitExceeded("a huge angle")
        try:
            return self._checked(_finite(_ONE_ARGUMENT[name](number)))
        except KeyError:
            raise CannotEvaluate(name) from None

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


def real(value: Value) -> Value:
    """A value as an mpmath number."""
    return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def power(base: Value, exponent: Value) -> Value:
    """``base ** exponent``, exact where it can be; real odd roots of negative numbers are real.

    Raises:
        Undefined: 0 to a power that is not positive.
        LimitExceeded: The result is too large.
    """
    if base == 0 and not isinstance(exponent, mp.mpc) and exponent <= 0:
        if exponent == 0:
            return Fraction(1)
        raise Undefined("a division by zero")
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            bits = max(base.numerator.bit_length(), base.denominator.bit_length())
            if abs(exponent) * bits <= MAX_BITS:
                return base ** int(exponent)
            if abs(base) == 1:
                return base ** (int(exponent) % 2)
        elif base < 0 and exponent.denominator in _ODD_ROOTS:
            root = power(-base, exponent)
            return -root if exponent.numerator % 2 else root
        elif (exact := _exact_root(base, exponent)) is not None:
            return exact
    inexact_base, inexact_exponent = real(base), real(exponent)
    if inexact_base != 0:
        magnitude = abs(mp.log(abs(inexact_base), 2)) if abs(inexact_base) != 1 else mp.mpf(0)
        if abs(inexact_exponent) * (magnitude + 1) > MAX_POWER_BITS:
            raise LimitExceeded("a huge power")
    if isinstance(exponent, Fraction) and exponent.denominator == 1:
        return _finite(mp.power(inexact_base, int(exponent)))
    return _finite(mp.power(inexact_base, inexact_exponent))


def _exact_root(base: Fraction, exponent: Fraction) -> Fraction | None:
    if base < 0 or exponent.denominator > 64 or abs(exponent.numerator) > 64:
        return None
    roots = []
    for part in (base.numerator, base.denominator):
        if part.bit_length() > 4_000:
            return None
        root = _integer_root(part, exponent.denominator)
        if root**exponent.denominator != part:
            return None
        roots.append(root)
    return Fraction(*roots) ** exponent.numerator


def _integer_root(number: int, degree: int) -> int:
    if degree == 2:
        return math.isqrt(number)
    low, high = 0, 1 << (number.bit_length() // degree + 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle**degree <= number else (low, middle - 1)
    return low


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


def _finite(value: Value) -> Value:
    if not isinstance(value, Fraction) and mp.isnan(value):
        raise Undefined("not a number")
    return value


def _integer(value: Value) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1:
        raise CannotEvaluate("expected an integer")
    return int(value)


def _factorial(value: Value) -> Value:
    if isinstance(value, Fraction) and value.denominator == 1:
        if value < 0:
            raise Undefined("the factorial of a negative number")
        if value <= MAX_FACTORIAL:
            return Fraction(math.factorial(int(value)))
    number = real(value)
    if abs(number) > MAX_GAMMA:
        raise LimitExceeded("a huge factorial")
    return _finite(mp.gamma(number + 1))


def _binomial(above: Value, below: Value) -> Value:
    if isinstance(above, Fraction) and isinstance(below, Fraction) and above.denominator == below.denominator == 1:
        if 0 <= below <= above <= 2 * MAX_FACTORIAL:
            return Fraction(math.comb(int(above), int(below)))
        if 0 <= above < below:
            return Fraction(0)
    if max(abs(real(above)), abs(real(below))) > MAX_GAMMA:
        raise LimitExceeded("a huge binomial coefficient")
    return _finite(mp.binomial(real(above), real(below)))


def _logarithm(value: Value, base: Value | None) -> Value:
    if value == 0:
        raise Undefined("the logarithm of zero")
    if base is None:
        return Fraction(0) if value == 1 else mp.log(real(value))
    if base == 1 or base == 0:
        raise Undefined("a logarithm to the base 0 or 1")
    quotient = mp.log(real(value)) / mp.log(real(base))
    near = mp.nint(quotient.real)
    rational = isinstance(value, Fraction) and isinstance(base, Fraction)
    if rational and abs(near) < 4_000 and abs(quotient - near) < mp.mpf(10) ** -20:
        exact = Fraction(int(near))
        return exact if power(base, exact) == value else quotient
    return quotient
