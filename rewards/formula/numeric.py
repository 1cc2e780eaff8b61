"""Equality of expressions by their values: exact where fractions suffice, else at many points in high precision.

Invariant: says "different" only on a clear difference at a point where both sides are defined, and "equal" only
where all of many points agree to almost all digits; otherwise says nothing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from fractions import Fraction

from mpmath import mp

from turntree.rewards.formula.evaluate import Evaluation
from turntree.rewards.formula.functions import Value, real
from turntree.rewards.formula.nodes import Node, Num
from turntree.rewards.formula.problems import CannotEvaluate, Undefined
from turntree.rewards.formula.walk import free_variables, is_complex

DIGITS = 50
"""Decimal digits of the first evaluation."""
MORE_DIGITS = 130
"""Decimal digits where the first one is not clear."""
_GUARD = 12
_CLEAR = 1e-6
_POINTS = 5
_TRIES = 14
_FLOAT_DIGITS = 14


def equal(gold: Node, answer: Node) -> bool | None:
    """Whether two expressions are equal, over the reals wherever both are real.

    Args:
        gold: The right expression.
        answer: The other one.

    Returns:
        ``None`` where neither could be shown.

    Raises:
        LimitExceeded: A value is too large or takes too long.
        Undefined: One side has no value at all.
        CannotEvaluate: One side has an operation that is not carried out here.
    """
    names = sorted(free_variables(gold) | free_variables(answer))
    if not names:
        verdict = _at_point(gold, answer, {}, real_only=not (is_complex(gold) or is_complex(answer)))
        if verdict is False and _same_float(gold, answer):
            return True
        return verdict
    if not free_variables(gold) and not _varies(answer, names):
        raise Undefined("no value")
    for real_only, points in (
        (True, _real_points(names)),
        (True, _integer_points(names)),
        (False, _real_points(names)),
    ):
        agreed = 0
        for point in points:
            try:
                verdict = _at_point(gold, answer, point, real_only=real_only)
            except Undefined:
                continue
            if verdict is not True:
                return verdict
            agreed += 1
            if agreed == 2 * _POINTS:
                break
        if agreed >= _POINTS:
            return True
    return None


def _at_point(gold: Node, answer: Node, point: Mapping[str, Value], *, real_only: bool) -> bool | None:
    for digits in (DIGITS, MORE_DIGITS):
        with mp.workdps(digits):
            left, right = _value(gold, point, real_only), _value(answer, point, real_only)
            if isinstance(left, Fraction) and isinstance(right, Fraction):
                return left == right
            left, right = real(left), real(right)
            if mp.isinf(left) or mp.isinf(right):
                return bool(left == right)
            difference, scale = abs(left - right), max(abs(left), abs(right))
            if difference == 0:
                return True
            if left == 0 or right == 0:
                scale = mp.mpf(1)
            close = difference <= scale * mp.mpf(10) ** (_GUARD - digits)
            if digits == DIGITS and not close and difference > _CLEAR * scale:
                return False
    return True if close else False if difference > scale * mp.mpf(10) ** (-digits // 2) else None


def _value(node: Node, point: Mapping[str, Value], real_only: bool) -> Value:
    evaluation = Evaluation(point, real_only=real_only)
    try:
        return evaluation.value(node)
    except Undefined:
        if point or not real_only:
            raise
    return Evaluation(point).value(node)


def _varies(node: Node, names: list[str]) -> bool:
    """Whether an expression has a value anywhere; ``x/0`` has none."""
    for point in _real_points(names):
        try:
            Evaluation(point).value(node)
        except Undefined:
            continue
        return True
    return False


def _real_points(names: list[str]) -> Iterator[dict[str, Value]]:
    """Positive points first, then points of both signs; the same for the same names."""
    draw = random.Random(" ".join(names))
    for trial in range(_TRIES):
        yield {
            name: Fraction(draw.randint(301, 2_999), 1_009) * (1 if trial < _POINTS else draw.choice((-1, 1)))
            for name in names
        }
    for _ in range(_TRIES):
        yield {name: Fraction(draw.randint(-30_011, 30_011), 1_013) for name in names}


def _integer_points(names: list[str]) -> Iterator[dict[str, Value]]:
    draw = random.Random(" ".join(names))
    for _ in range(_TRIES):
        yield {name: Fraction(draw.randint(1, 9)) for name in names}


def _same_float(gold: Node, answer: Node) -> bool:
    """Whether one side is a repeating fraction and the other the same as floating-point numbers are printed."""
    for exact, printed in ((gold, answer), (answer, gold)):
        if not (isinstance(printed, Num) and printed.decimals > 0):
            continue
        digits = len(str(abs(printed.value.numerator * 10**printed.decimals // printed.value.denominator)))
        if digits < _FLOAT_DIGITS:
            continue
        try:
            value = Evaluation().value(exact)
        except (Undefined, CannotEvaluate):
            continue
        if isinstance(value, Fraction) and abs(value - printed.value) < Fraction(1, 10**printed.decimals):
            return value.denominator != 1
    return False
