"""Powers, roots, factorials and logarithms: exact where possible, always bounded in size."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from typing import Any

from mpmath import mp

from turntree.rewards.formula.syntax.problems import CannotEvaluate, Undefined
from turntree.rewards.limits import MAX_BITS, MAX_FACTORIAL, MAX_GAMMA, MAX_POWER_BITS, LimitExceeded

Value = Any  #: a ``Fraction``, or an mpmath number of the working precision
_ODD_ROOTS = (3, 5, 7, 9)


def applied(name: str, values: list[Value]) -> Value:
    """Return a stand-in value for a symbolic function: a hash of its name and arguments.

    ``C(n, k)``, ``P(n, k)`` and ``Gamma(x)`` have their usual meaning.
    """
    if name == "Gamma" and len(values) == 1:
        return factorial(values[0] - 1)
    if name in ("C", "P") and len(values) == 2 and all(isinstance(value, Fraction) for value in values):
        chosen = binomial(values[0], values[1])
        return chosen if name == "C" else chosen * factorial(values[1])
    written = ";".join("0" if abs(number) < mp.mpf(10) ** -30 else mp.nstr(number, 20) for number in map(real, values))
    digest = hashlib.blake2b(f"{name}({written})".encode(), digest_size=6).digest()
    return Fraction(int.from_bytes(digest, "big") + 1, 2**46)


def real(value: Value) -> Value:
    return mp.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value


def power(base: Value, exponent: Value) -> Value:
    """Return ``base ** exponent``, exact where possible; odd roots of negative numbers are real.

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
        return finite(mp.power(inexact_base, int(exponent)))
    return finite(mp.power(inexact_base, inexact_exponent))


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


def finite(value: Value) -> Value:
    if not isinstance(value, Fraction) and mp.isnan(value):
        raise Undefined("not a number")
    return value


def integer(value: Value) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1:
        raise CannotEvaluate("expected an integer")
    return int(value)


def factorial(value: Value) -> Value:
    if isinstance(value, Fraction) and value.denominator == 1:
        if value < 0:
            raise Undefined("the factorial of a negative number")
        if value <= MAX_FACTORIAL:
            return Fraction(math.factorial(int(value)))
    number = real(value)
    if abs(number) > MAX_GAMMA:
        raise LimitExceeded("a huge factorial")
    return finite(mp.gamma(number + 1))


def binomial(above: Value, below: Value) -> Value:
    if isinstance(above, Fraction) and isinstance(below, Fraction) and above.denominator == below.denominator == 1:
        if 0 <= below <= above <= 2 * MAX_FACTORIAL:
            return Fraction(math.comb(int(above), int(below)))
        if 0 <= above < below:
            return Fraction(0)
    if max(abs(real(above)), abs(real(below))) > MAX_GAMMA:
        raise LimitExceeded("a huge binomial coefficient")
    return finite(mp.binomial(real(above), real(below)))


def logarithm(value: Value, base: Value | None) -> Value:
    # The result is exact if the value is a power of a rational base.
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
