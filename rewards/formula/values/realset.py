"""Sets of real numbers: intervals, unions, differences, inequalities in one variable.

A set is a sorted sequence of disjoint pieces, so two sets are equal exactly if their pieces are equal. Sets with
symbolic ends are not covered.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from mpmath import mp

from turntree.rewards.formula.syntax.nodes import (
    MINUS_ONE,
    Add,
    Builder,
    Call,
    Const,
    Group,
    Mul,
    Node,
    Num,
    Pow,
    Quantity,
    Rel,
    SetOp,
    Signed,
    Sym,
)
from turntree.rewards.formula.syntax.problems import CannotEvaluate, Undefined
from turntree.rewards.formula.syntax.walk import free_variables, holds
from turntree.rewards.formula.values.evaluate import Evaluation
from turntree.rewards.formula.values.functions import Value, real
from turntree.rewards.formula.values.numeric import DIGITS
from turntree.rewards.formula.values.rational import Quotient, quotient
from turntree.rewards.limits import MAX_ELEMENTS

_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!=", "=": "="}


class Piece(NamedTuple):
    """An interval, or a point if both ends are equal."""

    low: Value  #: may be infinite
    high: Value  #: may be infinite
    has_low: bool  #: whether the lower end belongs to the piece
    has_high: bool  #: whether the upper end belongs to the piece


RealSet = tuple[Piece, ...]
REALS: RealSet = (Piece(-mp.inf, mp.inf, False, False),)


def real_set(node: Node) -> RealSet | None:
    """Return the set that a node describes; ``None`` if it describes no set, or one with symbolic ends."""
    with mp.workdps(DIGITS):
        try:
            return _set(node)
        except (CannotEvaluate, Undefined):
            return None


def is_set_like(node: Node) -> bool:
    match node:
        case SetOp() | Builder():
            return True
        case Const(name):
            return name in ("R", "Z", "N", "Q", "C", "empty")
        case Rel(_, signs):
            return any(sign in ("<", "<=", ">", ">=", "!=", "in") for sign in signs)
        case Group(items, opening, closing, _):
            if opening in ("[", "]") or closing in ("[", "]"):
                return len(items) == 2
            return opening == "" and any(is_set_like(item) for item in items if isinstance(item, Rel | SetOp))
    return False


def same_set(left: RealSet, right: RealSet) -> bool:
    return len(left) == len(right) and all(
        one.has_low == other.has_low
        and one.has_high == other.has_high
        and _close(one.low, other.low)
        and _close(one.high, other.high)
        for one, other in zip(left, right, strict=True)
    )


def _close(left: Value, right: Value) -> bool:
    if left == right:
        return True
    if mp.isinf(left) or mp.isinf(right):
        return False
    return bool(abs(left - right) <= max(abs(left), abs(right), mp.mpf(10) ** -20) * mp.mpf(10) ** -30)


def _set(node: Node) -> RealSet | None:
    match node:
        case Const("R"):
            return REALS
        case Const("empty"):
            return ()
        case Quantity(value, _):
            return _set(value)
        case Rel():
            return _relation(node)
        case Builder(Sym(name) | Rel((Sym(name), Const("R")), ("in",)), condition):
            return _set(condition) if free_variables(condition) == {name} else None
        case Builder(Rel((Sym(name), Const("Z" | "N" as domain)), ("in",)), condition):
            whole = _set(condition) if free_variables(condition) == {name} else None
            return None if whole is None else _integers(whole, domain)
        case SetOp(sign, left, right):
            one, other = _set(left), _set(right)
            if one is None or other is None:
                return None
            if sign == "cup":
                return _union(one + other)
            return _intersection(one, other if sign == "cap" else _complement(other))
        case Group(items, "{", "}", _):
            return _union(tuple(Piece(end, end, True, True) for item in items for end in _ends(item)))
        case Group(items, "", "", word) if len(free_variables(node)) <= 1:
            sets = [_set(item) for item in items]
            if any(one is None for one in sets):
                return None
            known = [one for one in sets if one is not None]
            # "x > 2, x < 1" has an empty intersection, so the list means a union.
            both = known[0]
            for one in known[1:]:
                both = _intersection(both, one)
            return (
                _union(tuple(piece for one in known for piece in one))
                if word == "or" or (not both and word != "and")
                else both
            )
        case Group((low, high), opening, closing, _) if opening in "([]" and closing in ")][":
            ends = _ends(low) + _ends(high)
            if len(ends) != 2 or ends[0] > ends[1]:
                return None
            return _union((Piece(ends[0], ends[1], opening == "[", closing == "]"),))
    return None


def _integers(pieces: RealSet, domain: str) -> RealSet | None:
    # Returns None if the set depends on whether 0 is a natural number, which differs by country.
    found: list[Piece] = []
    for piece in pieces:
        if mp.isinf(piece.low) or mp.isinf(piece.high) or piece.high - piece.low > MAX_ELEMENTS:
            return None
        for number in range(int(mp.ceil(real(piece.low))), int(mp.floor(real(piece.high))) + 1):
            inside = (piece.has_low or number != piece.low) and (piece.has_high or number != piece.high)
            if inside and domain == "N" and number == 0:
                return None
            if inside and (domain == "Z" or number > 0):
                found.append(Piece(mp.mpf(number), mp.mpf(number), True, True))
    return tuple(found)


def _ends(node: Node) -> list[Value]:
    signs = (1, -1) if holds(node, Signed) else (1,)
    values = [real(Evaluation(sign=sign, real_only=True).value(node)) for sign in signs]
    if any(isinstance(value, mp.mpc) for value in values):
        raise Undefined("not real")
    return values


def _relation(node: Rel) -> RealSet | None:
    if node.signs[0] == "in" and len(node.signs) == 1 and isinstance(node.terms[0], Sym):
        inside = node.terms[1]
        return _set(inside) if inside is not None else None
    if any(sign not in _TURNED for sign in node.signs):
        return None
    names = free_variables(node)
    if len(names) != 1:
        return None
    (name,) = names
    found: RealSet = REALS
    for index, sign in enumerate(node.signs):
        left, right = node.terms[index], node.terms[index + 1]
        solved = None if left is None or right is None else _compared(left, sign, right, name)
        if solved is None:
            return None
        found = _intersection(found, solved)
    return found


def _compared(left: Node, sign: str, right: Node, name: str) -> RealSet | None:
    if not free_variables(left):
        left, right, sign = right, left, _TURNED[sign]
    if not free_variables(left):
        return None
    if isinstance(left, Sym) and not free_variables(right):
        return _half_line(sign, _ends(right)[0])
    if (ratio := quotient(Add((left, Mul((MINUS_ONE, right)))), name)) is not None:
        return _signed(ratio, sign)
    return None if free_variables(right) else _solved(left, sign, _ends(right)[0])


def _solved(subject: Node, sign: str, bound: Value) -> RealSet | None:
    # Solve for a subject that is linear, an absolute value or a square.
    if isinstance(subject, Pow) and subject.exponent == Num(Fraction(2)):
        # A square is never negative.
        if bound < 0:
            return REALS if sign in (">", ">=", "!=") else ()
        return _solved(Call("abs", (subject.base,)), sign, mp.sqrt(bound))
    if isinstance(subject, Call) and subject.name == "abs":
        inner = subject.args[0]
        one, other = _solved(inner, sign, bound), _solved(inner, _TURNED[sign], -bound)
        if one is None or other is None or bound < 0:
            return None
        return _intersection(one, other) if sign in ("<", "<=", "!=") else _union(one + other)
    if (argument := _argument(subject)) is not None:
        return _undone(subject, argument, sign, bound)
    if isinstance(subject, Sym):
        return _half_line(sign, bound)
    names = free_variables(subject)
    return _linear(subject, next(iter(names)), sign, bound) if len(names) == 1 else None


def _linear(subject: Node, name: str, sign: str, bound: Value) -> RealSet | None:
    try:
        points = ({name: Fraction(x)} for x in (0, 1, 2, 5))
        at = [real(Evaluation(point, real_only=True).value(subject)) for point in points]
    except (CannotEvaluate, Undefined):
        return None
    if any(isinstance(value, mp.mpc) for value in at):
        return None
    slope = at[1] - at[0]
    if slope != 0 and _close(at[2] - at[1], slope) and _close(at[3] - at[2], 3 * slope):
        return _half_line(sign if slope > 0 else _TURNED[sign], (bound - at[0]) / slope)
    return None


def _signed(ratio: Quotient, sign: str) -> RealSet:
    roots = ratio.roots()
    holds_at = {"<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (1, 0), "=": (0,), "!=": (-1, 1)}[sign]
    found = []
    for low, high in pairwise((-mp.inf, *roots, mp.inf)):
        between = mp.mpf(0) if low == -mp.inf and high == mp.inf else high - 1 if low == -mp.inf else low + 1
        if not mp.isinf(low) and not mp.isinf(high):
            between = (low + high) / 2
        value = ratio.value(between)
        if value is not None and (0 if not ratio.above else mp.sign(value)) in holds_at:
            found.append(Piece(low, high, False, False))
    if 0 in holds_at:
        found += [Piece(root, root, True, True) for root in roots if ratio.value(root) is not None]
    return _union(tuple(found))


def _argument(subject: Node) -> Node | None:
    match subject:
        case Call("ln" | "log", (inner, *base)) if not any(map(free_variables, base)):
            return inner
        case Pow(inner, Num(exponent)) if exponent == Fraction(1, 2):
            return inner
        case Pow(base, inner) if not free_variables(base):
            return inner
    return None


def _undone(subject: Node, inner: Node, sign: str, bound: Value) -> RealSet | None:
    # Undo a monotone function: the relation holds between its argument and the preimage of the bound.
    if isinstance(subject, Call):
        base = _ends(subject.args[1])[0] if len(subject.args) > 1 else mp.e
        domain = _solved(inner, ">", mp.mpf(0))
        solved = _solved(inner, sign, mp.power(real(base), real(bound))) if base > 1 else None
    elif isinstance(subject, Pow) and subject.base is inner:
        domain = _solved(inner, ">=", mp.mpf(0))
        if bound < 0:
            return domain if sign in (">", ">=", "!=") else ()
        solved = _solved(inner, sign, bound**2)
    else:
        base = _ends(subject.base)[0] if isinstance(subject, Pow) else Fraction(0)
        if base <= 0 or base == 1:
            return None
        if bound <= 0:
            return REALS if sign in (">", ">=", "!=") else ()
        turned = sign if base > 1 else _TURNED[sign]
        return _solved(inner, turned, mp.log(real(bound)) / mp.log(real(base)))
    return None if domain is None or solved is None else _intersection(domain, solved)


def _half_line(sign: str, bound: Value) -> RealSet:
    if sign == "=":
        return (Piece(bound, bound, True, True),)
    if sign == "!=":
        return _complement((Piece(bound, bound, True, True),))
    if sign in ("<", "<="):
        return (Piece(-mp.inf, bound, False, sign == "<="),)
    return (Piece(bound, mp.inf, sign == ">=", False),)


def _union(pieces: RealSet) -> RealSet:
    cleaned = []
    for low, high, has_low, has_high in pieces:
        has_low, has_high = has_low and not mp.isinf(low), has_high and not mp.isinf(high)
        if low < high or (low == high and has_low and has_high):
            cleaned.append(Piece(low, high, has_low, has_high))
    cleaned.sort(key=lambda piece: (piece.low, not piece.has_low))
    merged: list[Piece] = []
    for piece in cleaned:
        last = merged[-1] if merged else None
        touches = last is not None and (
            piece.low < last.high or (_close(piece.low, last.high) and (piece.has_low or last.has_high))
        )
        if last is None or not touches:
            merged.append(piece)
        elif piece.high > last.high or (_close(piece.high, last.high) and piece.has_high):
            merged[-1] = Piece(last.low, piece.high, last.has_low, piece.has_high)
    return tuple(merged)


def _complement(pieces: RealSet) -> RealSet:
    gaps, low, has_low = [], -mp.inf, False
    for piece in _union(pieces):
        gaps.append(Piece(low, piece.low, has_low, not piece.has_low))
        low, has_low = piece.high, not piece.has_high
    gaps.append(Piece(low, mp.inf, has_low, False))
    return _union(tuple(gaps))


def _intersection(left: RealSet, right: RealSet) -> RealSet:
    pieces = []
    for one in left:
        for other in right:
            low, high = max(one.low, other.low), min(one.high, other.high)
            has_low = all(piece.has_low for piece in (one, other) if _close(piece.low, low))
            has_high = all(piece.has_high for piece in (one, other) if _close(piece.high, high))
            pieces.append(Piece(low, high, has_low, has_high))
    return _union(tuple(pieces))
