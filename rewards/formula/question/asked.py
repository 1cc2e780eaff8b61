r"""The formulas of a question, and a normal form of trees for equivalent notations.

Parts of a question that cannot be parsed are skipped; they never make an answer wrong.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from turntree.rewards.formula.plain import bared
from turntree.rewards.formula.quantities import without_unit
from turntree.rewards.formula.syntax.nodes import (
    MINUS_ONE,
    Add,
    Based,
    Call,
    Group,
    Mul,
    Node,
    Num,
    Pow,
    Quantity,
    Rel,
    Signed,
)
from turntree.rewards.formula.syntax.parse import parse
from turntree.rewards.formula.syntax.problems import Malformed, Suspect
from turntree.rewards.formula.syntax.walk import ordered
from turntree.rewards.limits import LimitExceeded

_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_PLAIN = re.compile(r"(?<![\w.])[-(]*\d[\d.]*!?(?:[ ]?[-+*/^()][-+*/^() ]*\d[\d.]*!?|\))+|(?<![\w.])\d{1,4}!(?!\w)")
_AMOUNT = r"(?:\$|\\\()?\s*((?:\\d?frac\s*\{\d+\}\s*\{\d+\}|\d[\d,]*(?:\.\d+)?(?:\s*/\s*\d+)?))\s*"
_FIRST = _AMOUNT + r"(?:\$|\\\))?\s*"  #: a number before a word, with the sign that ends its formula
#: operations in words, and the formulas that they stand for
_WORDED = tuple(
    (re.compile(pattern.replace("FIRST ", _FIRST).replace("AMOUNT", _AMOUNT), re.IGNORECASE), written)
    for pattern, written in (
        (r"AMOUNT(?:\\?%|percent)\s*(?:\$|\\\))?\s*of AMOUNT", r"\frac{%s}{100}\cdot(%s)"),
        (r"FIRST of AMOUNT", r"(%s)\cdot(%s)"),
        (r"product of FIRST and AMOUNT", r"(%s)\cdot(%s)"),
        (r"sum of FIRST and AMOUNT", "(%s)+(%s)"),
        (r"difference (?:of|between) FIRST and AMOUNT", "(%s)-(%s)"),
        (r"quotient of FIRST and AMOUNT", r"\frac{%s}{%s}"),
        (r"(?:greatest|highest) common (?:divisor|factor) of FIRST and AMOUNT", r"\gcd(%s,%s)"),
        (r"(?:least|lowest) common (?:multiple|denominator) of FIRST and AMOUNT", r"\lcm(%s,%s)"),
        (r"remainder when FIRST is divided by AMOUNT", r"%s \bmod %s"),
        (r"FIRST divided by AMOUNT", r"\frac{%s}{%s}"),
        (r"FIRST (?:times|multiplied by) AMOUNT", r"(%s)\cdot(%s)"),
        (r"FIRST plus AMOUNT", "(%s)+(%s)"),
        (r"FIRST minus AMOUNT", "(%s)-(%s)"),
        (r"square root of AMOUNT", r"\sqrt{%s}"),
        (r"cube root of AMOUNT", r"\sqrt[3]{%s}"),
        (r"(?<!\w)square of AMOUNT", "(%s)^2"),
        (r"(?<!\w)cube of AMOUNT", "(%s)^3"),
        (r"factorial of AMOUNT", "(%s)!"),
    )
)
_MAX_QUESTION = 8_000
_MAX_FORMULAS = 60
_ONE = Num(Fraction(1))


class Piece(NamedTuple):
    """A formula of a question, or one side of such a formula."""

    node: Node  #: flat syntax tree of the formula, see ``flattened``
    shape: object  #: normal form of the tree, equal for trees that differ only in order


@lru_cache(maxsize=64)
def pieces(question: str) -> tuple[Piece, ...]:
    """Return the formulas of a question and the sides of its relations, also those written in plain text."""
    question = question[-_MAX_QUESTION:]
    texts = [next(filter(None, match.groups())) for match in _FORMULA.finditer(question)]
    texts += _PLAIN.findall(_FORMULA.sub(" ", question))
    texts += [written % found for pattern, written in _WORDED for found in pattern.findall(question)]
    found: dict[object, Node] = {}
    for text in texts[-_MAX_FORMULAS:]:
        try:
            node = parse(bared(text))
        except (Malformed, Suspect, LimitExceeded):
            continue
        sides = [side for side in node.terms if side is not None] if isinstance(node, Rel) else []
        for part in (node, *sides):
            flat = without_unit(flattened(part))
            found.setdefault(shape(flat), flat)
    return tuple(Piece(node, key) for key, node in found.items())


def shape(node: Node) -> object:
    """Return a normal form of a flat tree, equal for trees that differ only in order.

    For an equation, the order of the sides does not matter either.
    """
    if isinstance(node, Rel) and node.signs == ("=",):
        return ("=", frozenset(None if side is None else shape(side) for side in node.terms))
    return ordered(node)


def flattened(node: Node) -> Node:
    """Flatten nested sums and products, move signs into numbers and drop the count of decimals."""
    match node:
        case Num(value):
            return Num(value)
        case Based(_, 10):
            return Num(node.value)
        case Quantity(value, unit):
            return Quantity(flattened(value), unit)
        case Add(terms):
            return Add(tuple(part for term in terms for part in parts(flattened(term), Add)))
        case Mul(factors):
            return _product([part for factor in factors for part in parts(flattened(factor), Mul)])
        case Pow(base, Mul((Num(above), Pow(Num(below), Num(inverse))))) if inverse == -1 and below:
            return Pow(flattened(base), Num(above / below))
        case Pow(base, exponent):
            return Pow(flattened(base), flattened(exponent))
        case Call(name, args):
            return Call(name, tuple(map(flattened, args)))
        case Signed(sign, term):
            return Signed(sign, flattened(term))
        case Group(items, opening, closing, word):
            return Group(tuple(map(flattened, items)), opening, closing, word)
        case Rel(terms, signs):
            return Rel(tuple(None if term is None else flattened(term) for term in terms), signs)
    return node


def parts(node: Node, kind: type[Add] | type[Mul]) -> tuple[Node, ...]:
    if isinstance(node, kind):
        return node.terms if isinstance(node, Add) else node.factors
    return (node,)


def _product(factors: list[Node]) -> Node:
    # Drop factors 1. The sign moves into the first number, or into a sum that is the only factor.
    rest = [factor for factor in factors if factor not in (MINUS_ONE, _ONE)]
    if factors.count(MINUS_ONE) % 2:
        if len(rest) == 1 and isinstance(rest[0], Add):
            return Add(tuple(_product([MINUS_ONE, *parts(term, Mul)]) for term in rest[0].terms))
        for index, factor in enumerate(rest):
            if isinstance(factor, Num):
                rest[index] = Num(-factor.value)
                break
        else:
            rest.insert(0, MINUS_ONE)
    if not rest:
        return _ONE
    return rest[0] if len(rest) == 1 else Mul(tuple(rest))
