r"""Detection of answers that repeat the question: one of its formulas, or an operation that it asks for.

An evaluated number is in lowest terms. It may keep roots, pi, e and i, and the operations that the gold answer keeps.
Three kinds of answers restate the question. (1) A relation of the question instead of a value. (2) A formula F of the
question, even with a neutral operation (``F + 0``, ``2F/2``). (3) Any unevaluated form, if a formula of the question
has the value of the gold answer. An answer whose syntax tree equals the gold answer's tree is right in any case.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from turntree.rewards.formula.quantities import without_unit
from turntree.rewards.formula.question.asked import Piece, flattened, parts, pieces, shape
from turntree.rewards.formula.question.shapes import lowest, undivided
from turntree.rewards.formula.syntax.nodes import (
    MINUS_ONE,
    Add,
    Based,
    Call,
    Const,
    Group,
    Mul,
    Node,
    Num,
    Pow,
    Rel,
    Sym,
    Words,
)
from turntree.rewards.formula.syntax.problems import CannotEvaluate, Undefined
from turntree.rewards.formula.syntax.walk import children, free_variables, walk
from turntree.rewards.formula.values.evaluate import Evaluation
from turntree.rewards.formula.values.numeric import equal, real_points
from turntree.rewards.limits import LimitExceeded

_ASKED = Sym("\0")  #: stands for a formula that the answer copies from the question
_FAILURES = (Undefined, CannotEvaluate, LimitExceeded)


def is_restated(question: str, gold: Node, answer: Node) -> bool:
    """Return whether a right answer only repeats the question."""
    gold, answer = without_unit(flattened(gold)), without_unit(flattened(answer))
    if isinstance(answer, Rel) and not isinstance(gold, Rel):
        if any(piece.shape == shape(answer) for piece in pieces(question)):
            return True
        answer = without_unit(answer.terms[-1] or answer)
    if isinstance(gold, Rel) and not isinstance(answer, Rel):
        gold = without_unit(gold.terms[-1] or gold)
    if _is_atomic(answer) or shape(answer) == shape(gold):
        return False
    asked = pieces(question)
    if any(_copies(answer, piece) and not _copies(gold, piece) for piece in asked):
        return True
    if free_variables(gold) or free_variables(answer) or is_evaluated(answer, gold):
        return False
    return any(_asks_for(piece.node, gold) for piece in asked)


def is_evaluated(node: Node, gold: Node) -> bool:
    """Return whether every operation is carried out, except operations that the gold answer keeps, too."""
    left = {_operation(inner) for inner in walk(gold)}
    match node:
        case Num() | Const() | Sym() | Words():
            return True
        case Group(items):
            return all(is_evaluated(item, gold) for item in items)
        case Add(terms):
            return sum(isinstance(term, Num) for term in terms) < 2 and all(is_evaluated(term, gold) for term in terms)
        case Mul(factors):
            return lowest(factors) and all(is_evaluated(undivided(factor), gold) for factor in factors)
        case Pow(base, Num(exponent)):
            root = exponent.denominator != 1 and not isinstance(_value(node), Fraction)
            scale = base == Num(Fraction(10)) and exponent.denominator == 1
            return (root or scale or _operation(node) in left) and is_evaluated(base, gold)
        case Pow(Const(), exponent):
            return is_evaluated(exponent, gold)
    return _operation(node) in left and all(is_evaluated(child, gold) for child in children(node))


def _operation(node: Node) -> str:
    if isinstance(node, Call):
        return node.name
    if isinstance(node, Pow) and isinstance(node.exponent, Num):
        return "root" if node.exponent.value.denominator > 1 else "quotient" if node.exponent == MINUS_ONE else "power"
    return type(node).__name__


def _is_atomic(node: Node) -> bool:
    # Integers, names and words, and tuples and sets of them, cannot be evaluated further.
    match node:
        case Num(value):
            return value.denominator == 1
        case Group(items):
            return all(map(_is_atomic, items))
        case Mul((first, second)) if first == MINUS_ONE:
            return _is_atomic(second)
    return not isinstance(node, Based) and not children(node)


def _asks_for(piece: Node, gold: Node) -> bool:
    if _is_atomic(piece) or free_variables(piece):
        return False
    try:
        return equal(gold, piece) is True
    except _FAILURES:
        return False


def _copies(answer: Node, piece: Piece) -> bool:
    if _is_atomic(piece.node):
        return False
    rest = _without(answer, piece)
    if rest == _ASKED:
        return True
    names = free_variables(rest)
    if _ASKED.name not in names:
        return False
    points = list(real_points(sorted(names)))[:3]
    return all(_value(rest, point) == point[_ASKED.name] for point in points)


def _without(node: Node, piece: Piece) -> Node:
    if shape(node) == piece.shape:
        return _ASKED
    match node:
        case Add() | Mul():
            kind = type(node)
            own, copied = parts(node, kind), parts(piece.node, kind)
            counted, wanted = Counter(map(shape, own)), Counter(map(shape, copied))
            if isinstance(piece.node, kind) and wanted <= counted:
                kept = []
                for part in own:
                    if wanted[shape(part)]:
                        wanted[shape(part)] -= 1
                    else:
                        kept.append(part)
                own = (_ASKED, *kept)
            return kind(tuple(_without(part, piece) for part in own))
        case Pow(base, exponent):
            return Pow(_without(base, piece), _without(exponent, piece))
        case Call(name, args):
            return Call(name, tuple(_without(arg, piece) for arg in args))
    return node


def _value(node: Node, point: dict[str, object] | None = None) -> object:
    try:
        return Evaluation(point, real_only=True).value(node)  # type: ignore[arg-type]
    except _FAILURES:
        return None
