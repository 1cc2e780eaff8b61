"""The sign of a quotient of polynomials in one variable, with exact coefficients."""

from __future__ import annotations

from fractions import Fraction
from itertools import zip_longest
from typing import NamedTuple

from mpmath import mp

from turntree.rewards.formula.syntax.nodes import Add, Mul, Node, Num, Pow, Sym
from turntree.rewards.formula.values.functions import Value

Coefficients = tuple[Fraction, ...]  #: coefficients by power, from power 0; the last coefficient is not 0
_MOST_DEGREE = 12
_ONE: Coefficients = (Fraction(1),)


class Quotient(NamedTuple):
    """One polynomial over another."""

    above: Coefficients  #: the numerator, empty if it is 0
    below: Coefficients

    def roots(self) -> list[Value]:
        return sorted(_real_roots(_product(self.above, self.below)))

    def value(self, at: Value) -> Value | None:
        below = _at(self.below, at)
        scale = sum(abs(mp.mpf(one.numerator) / one.denominator * at**power) for power, one in enumerate(self.below))
        return None if abs(below) <= scale * mp.mpf(10) ** -30 else _at(self.above, at) / below


def quotient(node: Node, name: str) -> Quotient | None:
    """Return a tree as a quotient of polynomials in a variable; ``None`` if it is none, or of high degree."""
    match node:
        case Num(value):
            return Quotient(_trimmed((value,)), _ONE)
        case Sym(own) if own == name:
            return Quotient((Fraction(0), Fraction(1)), _ONE)
        case Add(terms) | Mul(terms):
            found = [quotient(term, name) for term in terms]
            total = found[0]
            for part in found[1:]:
                if total is None or part is None:
                    return None
                above = _product(total.above, part.above)
                if isinstance(node, Add):
                    above = _sum(_product(total.above, part.below), _product(part.above, total.below))
                total = Quotient(above, _product(total.below, part.below))
                if max(map(len, total)) > _MOST_DEGREE + 1:
                    return None
            return total
        case Pow(base, Num(exponent)) if exponent.denominator == 1 and 0 < abs(exponent) <= _MOST_DEGREE:
            inner = quotient(base, name)
            if inner is None or (exponent < 0 and not inner.above):
                return None
            if exponent < 0:
                inner = Quotient(inner.below, inner.above)
            if (max(map(len, inner)) - 1) * abs(exponent) > _MOST_DEGREE:
                return None
            power = Quotient(_ONE, _ONE)
            for _ in range(abs(int(exponent))):
                power = Quotient(_product(power.above, inner.above), _product(power.below, inner.below))
            return power
    return None


def _trimmed(coefficients: tuple[Fraction, ...]) -> Coefficients:
    while coefficients and not coefficients[-1]:
        coefficients = coefficients[:-1]
    return coefficients


def _sum(left: Coefficients, right: Coefficients) -> Coefficients:
    return _trimmed(tuple(one + other for one, other in zip_longest(left, right, fillvalue=Fraction(0))))


def _product(left: Coefficients, right: Coefficients) -> Coefficients:
    found = [Fraction(0)] * max(len(left) + len(right) - 1, 0)
    for power, one in enumerate(left):
        for other_power, other in enumerate(right):
            found[power + other_power] += one * other
    return _trimmed(tuple(found))


def _divided(left: Coefficients, right: Coefficients) -> tuple[Coefficients, Coefficients]:
    found = [Fraction(0)] * max(len(left) - len(right) + 1, 0)
    rest = left
    while len(rest) >= len(right):
        shift, factor = len(rest) - len(right), rest[-1] / right[-1]
        found[shift] = factor
        rest = _sum(rest, _product((*[Fraction(0)] * shift, -factor), right))
    return _trimmed(tuple(found)), rest


def _real_roots(polynomial: Coefficients) -> list[Value]:
    # Divide by the common divisor with the derivative, which leaves each root once.
    if len(polynomial) < 2:
        return []
    divisor, rest = polynomial, _trimmed(tuple(power * one for power, one in enumerate(polynomial))[1:])
    while rest:
        divisor, rest = rest, _divided(divisor, rest)[1]
    simple = _divided(polynomial, divisor)[0]
    found = mp.polyroots(
        [mp.mpf(one.numerator) / one.denominator for one in reversed(simple)], maxsteps=200, extraprec=200
    )
    return [mp.re(root) for root in found if abs(mp.im(root)) <= (1 + abs(root)) * mp.mpf(10) ** -30]


def _at(polynomial: Coefficients, at: Value) -> Value:
    total = mp.mpf(0)
    for one in reversed(polynomial):
        total = total * at + mp.mpf(one.numerator) / one.denominator
    return total
