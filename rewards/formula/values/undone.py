r"""Estimates of unevaluated operations: integrals, derivatives, limits, infinite sums, determinants.

An estimate can only refute a value, and only if the difference is far larger than the error of the estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from mpmath import mp

from turntree.rewards.formula.syntax.nodes import Add, Big, Call, Const, Matrix, Mul, Node, Num, Rel, Sym, Undone
from turntree.rewards.formula.syntax.problems import CannotEvaluate, Undefined
from turntree.rewards.formula.syntax.walk import free_variables
from turntree.rewards.formula.values.evaluate import Evaluation
from turntree.rewards.formula.values.functions import Value, real
from turntree.rewards.limits import LimitExceeded

_DIGITS = 30
_CLEAR = mp.mpf("1e-4")  #: relative difference above which an estimate contradicts a value
_SETTLED = mp.mpf("1e-7")  #: two estimates of a limit that differ relatively by less than this have converged
_FAR = (10**7, 10**9)
_NEAR_DIGITS = 300  # near a limit, subtraction cancels most digits, hence this many
_TERMS = (200, 400)
_EDGES = (40, 60)
_INNER, _FROM_END = mp.mpf("0.38"), mp.mpf("5.6")
"""Points at which the second partition of an integral divides a finite and an infinite interval."""
_ONE = Num(Fraction(1))


def contradicts(undone: Node, value: Node) -> bool:
    r"""Return whether an unevaluated side clearly has another value: ``\int_0^1 x\,dx`` is not 1/3."""
    names = sorted(free_variables(undone) | free_variables(value))
    point: dict[str, Value] = {name: Fraction(17 + 3 * index, 13) for index, name in enumerate(names)}
    with mp.workdps(_DIGITS):
        try:
            match undone:
                # An indefinite integral is checked by the derivative of the answer.
                case Undone("int", (body,)):
                    integrand, name = _integrand(body)
                    ours = mp.diff(_function(value, name, point), real(point.get(name, Fraction(1))))
                    estimate = _Estimation(point).value(integrand)
                case _:
                    ours, estimate = Evaluation(point).value(value), _Estimation(point).value(undone)
            one, other = real(ours), real(estimate)
            return bool(abs(one - other) > _CLEAR * (abs(one) + abs(other)) + mp.mpf("1e-9"))
        except (CannotEvaluate, Undefined, LimitExceeded, ArithmeticError, ValueError, TypeError, mp.NoConvergence):
            return False


class _Estimation(Evaluation):
    def value(self, node: Node) -> Value:
        match node:
            case Undone("int", (low, high, body)):
                return self._integral(low, high, body)
            case Undone("diff", (by, body)):
                name = _differential(by)
                return mp.diff(_function(body, name, self.point), real(self.point[name]))
            case Undone("lim", (Rel((Sym(name), target), ("to",)), body)) if target is not None:
                return self._limit(_function(body, name, self.point), target)
            case Undone("det", (Matrix(rows),)):
                return mp.det(mp.matrix([[real(self.value(entry)) for entry in row] for row in rows]))
            case Big(kind, index, low, Const("inf"), body):
                first = self.value(low)
                parts = [Big(kind, index, low, Num(first + count), body) for count in _TERMS]
                return _settled(*map(super().value, parts), seen=0)
        return super().value(node)

    def _integral(self, low: Node, high: Node, body: Node) -> Value:
        integrand, name = _integrand(body)
        function = _function(integrand, name, self.point)
        ends = [real(self.value(end)) for end in (low, high)]
        try:
            return _twice_integrated(function, ends, _divided(*ends))
        except LimitExceeded:  # an exponential far from 0 exceeds the limits
            near, far = (
                [end if mp.isfinite(end) else mp.sign(end) * edge for end in part]
                for edge, part in zip(_EDGES, (ends, _divided(*ends)), strict=True)
            )
            return _twice_integrated(function, near, far)

    def _limit(self, function: Callable[[Value], Value], target: Node) -> Value:
        with mp.workdps(_NEAR_DIGITS):
            at = real(self.value(target))
            # Values at two points near the limit must agree; otherwise the limit is unknown.
            near = [mp.sign(at) * step if mp.isinf(at) else at + mp.mpf(1) / step for step in _FAR]
            values = [function(x) for x in near]
        return _settled(*values, seen=any(values))


def _twice_integrated(function: Callable[[Value], Value], one: list[Value], other: list[Value]) -> Value:
    # All points of one partition may miss a narrow peak, so a second partition must agree.
    seen = mp.mpf(0)

    def watched(x: Value) -> Value:
        nonlocal seen
        value = function(x)
        seen = max(seen, abs(value))
        return value

    return _settled(_quadrature(watched, one), _quadrature(watched, other), seen=min(seen, 1))


def _divided(low: Value, high: Value) -> list[Value]:
    if mp.isfinite(low) and mp.isfinite(high):
        return [low, low + _INNER * (high - low), high]
    if mp.isfinite(low) or mp.isfinite(high):
        return [low, low + mp.sign(high) * _FROM_END if mp.isfinite(low) else high + mp.sign(low) * _FROM_END, high]
    return [low, mp.sign(low) * (_FROM_END - _INNER), mp.sign(high) * _FROM_END, high]


def _quadrature(function: Callable[[Value], Value], ends: list[Value]) -> Value:
    # Fifteen digits suffice to contradict a value, and keep the quadrature fast.
    with mp.workdps(15):
        estimate, error = mp.quad(function, ends, error=True, maxdegree=5)
    if error > _SETTLED * (1 + abs(estimate)):
        raise CannotEvaluate("an integral that is not known well")
    return estimate


def _settled(one: Value, other: Value, *, seen: Value) -> Value:
    if abs(real(one) - real(other)) >= _SETTLED * (seen + abs(real(other))):
        raise CannotEvaluate("a limit that is not known well")
    return other


def _function(body: Node, name: str, point: dict[str, Value]) -> Callable[[Value], Value]:
    return lambda x: real(Evaluation({**point, name: x}).value(body))


def _integrand(body: Node) -> tuple[Node, str]:
    found: list[str] = []
    integrand = _without_differential(body, found)
    if len(found) != 1:
        raise CannotEvaluate("an integral without a variable")
    return integrand, found[0]


def _without_differential(node: Node, found: list[str]) -> Node:
    match node:
        case Add((*terms, last)):
            return Add((*terms, _without_differential(last, found)))
        case Call(name, (argument,)):
            return Call(name, (_without_differential(argument, found),))
        case Mul(factors):
            kept: list[Node] = []
            for factor in factors:
                if kept and kept[-1] == Sym("d") and isinstance(factor, Sym):
                    kept.pop()
                    found.append(factor.name)
                else:
                    kept.append(_without_differential(factor, found) if isinstance(factor, Mul) else factor)
            return Mul(tuple(kept)) if kept else _ONE
    return node


def _differential(by: Node) -> str:
    match by:
        case Mul((Sym("d"), Sym(name))):
            return name
    raise CannotEvaluate("a derivative of a higher order")
