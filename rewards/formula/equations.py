"""Comparison of equations and inequalities in several variables, by the points that satisfy them.

Two equations are equal if one is a constant times the other. They are also equal if the solutions of each satisfy the
other; solutions are found for a variable in which the equation is linear.
"""

from __future__ import annotations

import random
from fractions import Fraction

from mpmath import mp

from turntree.rewards.formula.syntax.nodes import MINUS_ONE, Add, Mul, Node, Rel, Sym
from turntree.rewards.formula.syntax.problems import CannotEvaluate, Undefined
from turntree.rewards.formula.syntax.walk import free_variables, is_complex, ordered, walk
from turntree.rewards.formula.values.evaluate import Evaluation
from turntree.rewards.formula.values.functions import Value, real
from turntree.rewards.formula.values.numeric import DIGITS, equal

_POINTS = 6
_TRIES = 24
_DIRECTED = frozenset(("to", "subset", "ni"))
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def compare_relations(gold: Rel, answer: Rel) -> bool | None:
    """Return whether two relations hold for the same values of their variables."""
    if ordered(gold) == ordered(answer):
        return True
    if len(gold.signs) != 1 or len(answer.signs) != 1 or gold.signs[0] in _DIRECTED:
        return _chains(gold, answer)
    if None in gold.terms or None in answer.terms:
        return False
    sign, other = gold.signs[0], answer.signs[0]
    left, right = _difference(gold), _difference(answer)
    names = sorted(free_variables(left) | free_variables(right))
    if free_variables(left) != free_variables(right) or not names:
        return False
    with mp.workdps(DIGITS):
        factor = _constant_factor(left, right, names)
        if factor is not None:
            # A negative factor reverses an inequality.
            turned = sign if isinstance(factor, mp.mpc) or factor > 0 else _TURNED.get(sign, sign)
            return turned == other
        if sign != "=" or other != "=" or _has_factor(left, right, names) or _has_factor(right, left, names):
            return False
        return _solves(left, right, names) and _solves(right, left, names)


def _chains(gold: Rel, answer: Rel) -> bool | None:
    if all(sign in _TURNED for sign in answer.signs) and gold.signs[0] == _TURNED[answer.signs[-1]]:
        answer = Rel(answer.terms[::-1], tuple(_TURNED[sign] for sign in reversed(answer.signs)))
    if len(gold.signs) != len(answer.signs):
        return False
    sides = list(zip(gold.terms, gold.signs, strict=False)), list(zip(answer.terms, answer.signs, strict=False))
    if [sign for _, sign in sides[0]] != [sign for _, sign in sides[1]]:
        return False
    for one, other in zip(gold.terms, answer.terms, strict=True):
        if one is None or other is None or not equal(one, other):
            return False
    return True


def _difference(relation: Rel) -> Node:
    left, right = relation.terms
    assert left is not None
    assert right is not None
    return Add((left, Mul((MINUS_ONE, right))))


def _points(names: list[str]) -> list[dict[str, Value]]:
    draw = random.Random(" ".join(names))
    return [{name: Fraction(draw.randint(-4_001, 4_001), 1_009) for name in names} for _ in range(_TRIES)]


def _constant_factor(left: Node, right: Node, names: list[str]) -> Value | None:
    factors = []
    beside = is_complex(left) or is_complex(right)  # complex conjugates have equal distances from every real number
    for point in _points(names):
        if beside:
            point = {name: mp.mpc(value := real(x), 1 + 3 * value) for name, x in point.items()}
        try:
            one = real(Evaluation(point, real_only=not beside).value(left))
            other = real(Evaluation(point, real_only=not beside).value(right))
        except Undefined:
            continue
        if not beside and (isinstance(one, mp.mpc) or isinstance(other, mp.mpc)):
            return None
        # Random points almost never solve an equation, so this side is 0 everywhere and no factor is defined.
        if one == 0 or other == 0:
            return None
        factors.append(other / one)
        if len(factors) == _POINTS:
            break
    if len(factors) < 3:
        return None
    spread = max(abs(factor - factors[0]) for factor in factors)
    if isinstance(factors[0], mp.mpc) and abs(factors[0].imag) < abs(factors[0].real) * mp.mpf(10) ** -30:
        factors = [factor.real for factor in factors]
    return factors[0] if spread <= abs(factors[0]) * mp.mpf(10) ** -30 else None


def _has_factor(equation: Node, other: Node, names: list[str]) -> bool:
    # Find a factor of one equation that the other equation lacks: where the factor is 0, only one equation holds.
    if not isinstance(equation, Add):
        return False
    for factor in (part for part in walk(equation) if isinstance(part, Add | Sym) and part is not equation):
        if not any(isinstance(part, Mul) and factor in part.factors for part in walk(equation)):
            continue
        for point in _points(names)[:3]:
            zero = _zero(factor, point)
            try:
                if zero is None or abs(real(Evaluation(zero).value(equation))) > mp.mpf(10) ** -25:
                    continue
                if abs(real(Evaluation(zero).value(other))) > mp.mpf(10) ** -20:
                    return True
            except (Undefined, CannotEvaluate):
                continue
    return False


def _zero(factor: Node, point: dict[str, Value]) -> dict[str, Value] | None:
    for name in sorted(free_variables(factor)):
        try:
            at = [real(Evaluation({**point, name: Fraction(x)}).value(factor)) for x in (0, 1, 2)]
        except (Undefined, CannotEvaluate):
            continue
        if at[1] != at[0] and at[2] - at[1] == at[1] - at[0]:
            return {**point, name: -at[0] / (at[1] - at[0])}
    return None


def _solves(equation: Node, other: Node, names: list[str]) -> bool:
    for name in names:
        found = 0
        for point in _points(names):
            try:
                values = [
                    real(Evaluation({**point, name: Fraction(at)}, real_only=True).value(equation)) for at in (0, 1, 2)
                ]
                # Values at three points show whether the equation is linear in the variable.
                slope = values[1] - values[0]
                if slope == 0 or values[0] == 0 or abs(values[2] - values[1] - slope) > abs(slope) * mp.mpf(10) ** -30:
                    break
                solution = {**point, name: -values[0] / slope}
                scale = abs(real(Evaluation(point, real_only=True).value(other)))
                rest = abs(real(Evaluation(solution, real_only=True).value(other)))
            except Undefined:
                continue
            if rest > (scale + 1) * mp.mpf(10) ** -25:
                return False
            found += 1
            if found == 3:
                return True
    return False
