"""Equality of expressions by their values: as exact fractions, else at many points in high precision.

Two expressions are different if they clearly differ at a point where both are defined. They are equal if almost all
digits agree at many points. Anything else is ungraded (``None``).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import permutations

from mpmath import mp

from turntree.rewards.formula.syntax.nodes import Call, Node, Num, Pow, Sym
from turntree.rewards.formula.syntax.problems import CannotEvaluate, Undefined
from turntree.rewards.formula.syntax.walk import free_variables, is_complex, replaced, walk
from turntree.rewards.formula.values.evaluate import Evaluation
from turntree.rewards.formula.values.functions import Value, real
from turntree.rewards.limits import LimitExceeded

DIGITS = 50  #: decimal digits of the first evaluation
MORE_DIGITS = 130  #: decimal digits of the second evaluation, used if the first decides nothing
_GUARD = 12
_CLEAR = 1e-6
_POINTS = 5
_TRIES = 14
_FLOAT_DIGITS = 14
# Names of constants of integration in gold answers and in answers: x^2 + C, C_1 e^x + C_2 e^{-x}.
_GOLD_CONSTANT = re.compile(r"C|[Cc]_\d")
_ANSWER_CONSTANT = re.compile(r"[CcKkA]|[CcKkA]_\d")
_VARIABLES = frozenset(("x", "y", "t", "z", "s", "u", "v", "theta", "f", "F"))
_MOST_CONSTANTS = 3
_STEPS = frozenset(["floor", "ceil", "mod", "gcd", "lcm", "max", "min"])


def equal(gold: Node, answer: Node) -> bool | None:
    """Return whether two expressions are equal, over the reals wherever both are real.

    Returns:
        ``None`` if ungraded.

    Raises:
        LimitExceeded: A value is too large or takes too long.
        Undefined: One side has no value anywhere.
        CannotEvaluate: One side has an operation that this package does not compute.
    """
    names = sorted(free_variables(gold) | free_variables(answer))
    if not names:
        verdict = _at_point(gold, answer, {}, real_only=not (is_complex(gold) or is_complex(answer)))
        if verdict is False and _same_float(gold, answer):
            return True
        return verdict
    if _steps_in(answer, free_variables(answer) - free_variables(gold)):
        return False
    if not free_variables(gold) and not _varies(answer, names):
        raise Undefined("no value")
    # Sums and factorials need integer points. Complex values are tried only if no real point decides.
    for real_only, points in ((True, real_points(names)), (True, integer_points(names)), (False, real_points(names))):
        verdict, agreed = _at_points(gold, answer, points, real_only=real_only)
        if verdict is not True:
            return verdict
        # Functions that agree at random points may differ at special points, such as steps, so try these, too.
        if agreed >= _POINTS:
            return all(_may_agree(gold, answer, point, real_only) for point in _special_points(names))
    return None


def _at_points(
    gold: Node, answer: Node, points: Iterator[dict[str, Value]], *, real_only: bool
) -> tuple[bool | None, int]:
    # Returns the first verdict that is not "equal", and the number of points at which both sides agree.
    agreed = 0
    for point in points:
        try:
            verdict = _at_point(gold, answer, point, real_only=real_only)
        except Undefined:
            continue
        if verdict is not True:
            return verdict, agreed
        agreed += 1
        if agreed == 2 * _POINTS:
            break
    return True, agreed


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
            # A relative difference from 0 is always 1, so use the absolute difference here.
            if left == 0 or right == 0:
                scale = mp.mpf(1)
            close = difference <= scale * mp.mpf(10) ** (_GUARD - digits)
            # A large difference needs no second evaluation; a small difference may come from cancellation.
            if digits == DIGITS and not close and difference > _CLEAR * scale:
                return False
    return True if close else False if difference > scale * mp.mpf(10) ** (-digits // 2) else None


def _may_agree(gold: Node, answer: Node, point: Mapping[str, Value], real_only: bool) -> bool:
    try:
        return _at_point(gold, answer, point, real_only=real_only) is not False
    except (Undefined, CannotEvaluate, LimitExceeded):
        return True


def _value(node: Node, point: Mapping[str, Value], real_only: bool) -> Value:
    evaluation = Evaluation(point, real_only=real_only)
    try:
        return evaluation.value(node)
    except Undefined:
        # A real number may be computed through complex intermediate values.
        if point or not real_only:
            raise
    return Evaluation(point).value(node)


def _steps_in(node: Node, names: frozenset[str]) -> bool:
    # Values at some points do not determine a step function of a variable.
    return bool(names) and any(
        (isinstance(inner, Call) and inner.name in _STEPS and free_variables(inner) & names)
        or (isinstance(inner, Pow) and free_variables(inner.exponent) & names and _is_zero(inner.base))
        for inner in walk(node)
    )


def _is_zero(node: Node) -> bool:
    # 0 to a power is 0, 1 or undefined, depending on the exponent.
    for point in real_points(sorted(free_variables(node))):
        try:
            with mp.workdps(DIGITS):
                return bool(abs(real(Evaluation(point).value(node))) < mp.mpf(10) ** (-DIGITS // 2))
        except (Undefined, CannotEvaluate, LimitExceeded):
            continue
    return False


def _varies(node: Node, names: list[str]) -> bool:
    # x/0 has no value anywhere.
    for point in real_points(names):
        try:
            Evaluation(point).value(node)
        except Undefined:
            continue
        return True
    return False


def real_points(names: list[str]) -> Iterator[dict[str, Value]]:
    """Yield points for some names: positive points first, then both signs. The same names give the same points."""
    # Seed by the names: a verdict must not depend on the process that computes it.
    draw = random.Random(" ".join(names))
    for trial in range(_TRIES):
        yield {
            name: Fraction(draw.randint(301, 2_999), 1_009) * (1 if trial < _POINTS else draw.choice((-1, 1)))
            for name in names
        }
    for _ in range(_TRIES):
        yield {name: Fraction(draw.randint(-30_011, 30_011), 1_013) for name in names}


def integer_points(names: list[str]) -> Iterator[dict[str, Value]]:
    # Points of small positive integers; the same names give the same points.
    draw = random.Random(" ".join(names))
    for _ in range(_TRIES):
        yield {name: Fraction(draw.randint(1, 9)) for name in names}


def _special_points(names: list[str]) -> Iterator[dict[str, Value]]:
    # Points at which functions often differ: all variables 0, 1, 2, a half, or large; then each variable alone 0 or 1.
    for value in (0, 1, 2, Fraction(1, 2), 1_009, -1_009):
        yield dict.fromkeys(names, Fraction(value))
    if len(names) > 1:
        for name in names[:_POINTS]:
            for value in (0, 1):
                yield {**dict.fromkeys(names, Fraction(7, 3)), name: Fraction(value)}


def _same_float(gold: Node, answer: Node) -> bool:
    # A repeating fraction equals the floating-point number that Python prints for it.
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


def renamed(gold: Node, answer: Node) -> Iterator[Node]:
    """Yield the answer with its constants renamed to the gold answer's constants, in every order."""
    wanted, given = _constants(gold, _GOLD_CONSTANT), _constants(answer, _ANSWER_CONSTANT)
    if not wanted or len(wanted) != len(given) or len(wanted) > _MOST_CONSTANTS or (wanted == given and "c_1" in given):
        return
    for names in permutations(wanted):
        if names != tuple(given):
            yield replaced(answer, {old: Sym(new) for old, new in zip(given, names, strict=True)})


def _constants(node: Node, pattern: re.Pattern[str]) -> list[str]:
    # A function of known variables whose other names can all be constants.
    names = free_variables(node)
    others = sorted(names - _VARIABLES)
    return others if names & _VARIABLES and all(map(pattern.fullmatch, others)) else []
