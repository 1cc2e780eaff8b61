"""Tolerances that a data set grants for single numbers."""

from __future__ import annotations

from fractions import Fraction

from mpmath import mp

from turntree.rewards.answer_format import AnswerFormat
from turntree.rewards.formula.quantities import in_one_unit, spelled_out, without_unit
from turntree.rewards.formula.syntax.nodes import Mul, Node, Num, Pow, Quantity, Rel, Sym
from turntree.rewards.formula.syntax.problems import CannotEvaluate, Suspect, Undefined
from turntree.rewards.formula.values.evaluate import Evaluation
from turntree.rewards.formula.values.functions import real
from turntree.rewards.limits import LimitExceeded


def within_tolerance(gold: Node, answer: Node, answer_format: AnswerFormat) -> bool:
    """Return whether two single numbers in agreeing units differ by no more than the format accepts."""
    try:
        values = in_one_unit(_unlabelled(gold), spelled_out(_unlabelled(answer), gold))
    except Suspect:
        return False
    right, ours = map(_number, values) if values is not None else (None, None)
    if right is None or ours is None:
        return False
    difference = abs(ours - right)
    allowed = max(
        mp.mpf(answer_format.absolute_tolerance) if answer_format.absolute_tolerance else mp.mpf(0),
        answer_format.relative_tolerance * abs(right),
    )
    if answer_format.rounded and (exponent := _last_digit_exponent(gold)) is not None:
        allowed = max(allowed, mp.mpf(10) ** exponent / 2)
    return bool(difference <= allowed * (1 + mp.mpf(10) ** -12))


def is_rounding(value: Node, rounded: Node) -> bool:
    """Return whether ``rounded`` is ``value``, rounded or cut off at the last digit of ``rounded``."""
    exact, written = _number(value), _number(rounded)
    if exact is None or written is None:
        return True
    exponent = _last_digit_exponent(rounded)
    if exponent is None and isinstance(rounded, Num) and rounded.value:
        exponent = len(digits := str(abs(rounded.value.numerator))) - len(digits.rstrip("0"))
    if isinstance(rounded, Quantity) and rounded.unit == "%" and not isinstance(value, Quantity):
        exact *= 100
    unit = abs(exact) / 100 if exponent is None else mp.mpf(10) ** exponent
    return bool(abs(exact - written) <= unit * (1 if abs(written) < abs(exact) else 0.500001))


def _last_digit_exponent(node: Node) -> int | None:
    # Whole numbers and formulas are exact, not rounded.
    match node:
        case Num(value, decimals) if decimals == 0 and 0 < abs(value) < 10**300 and "e" in f"{float(value):.15g}":
            mantissa, exponent = f"{float(value):.15e}".split("e")
            return int(exponent) - len(mantissa.rstrip("0").partition(".")[2]) or None
        case Mul((Num(_, decimals), Pow(Num(base), Num(exponent)))) if base == 10 and exponent.denominator == 1:
            return int(exponent) - decimals if decimals > 0 else None
        case Quantity(value, _):
            return _last_digit_exponent(value)
    return -digits if (digits := _decimals(node)) > 0 else None


def _decimals(node: Node) -> int:
    match node:
        case Num(_, decimals):
            return decimals
        case Quantity(value, _):
            return _decimals(value)
    return -1


def _unlabelled(node: Node) -> Node:
    match node:
        case Rel((Sym(), inner), ("=" | "approx",)) if inner is not None:
            return inner
    return node


def _number(node: Node) -> mp.mpf | None:
    try:
        value = Evaluation(real_only=True).value(without_unit(_unlabelled(node)))
    except (CannotEvaluate, Undefined, LimitExceeded):
        return None
    number = real(value) if isinstance(value, Fraction) else value
    return None if isinstance(number, mp.mpc) or mp.isinf(number) else number
