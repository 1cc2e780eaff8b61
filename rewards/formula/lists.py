"""Elements of lists and sets: labels dropped, double signs expanded, repetitions dropped."""

from __future__ import annotations

from turntree.rewards.formula.labels import labelled
from turntree.rewards.formula.syntax.nodes import Add, Group, Mul, Node, Pow, Quantity, Rel, SetOp, Signed, Sym
from turntree.rewards.formula.syntax.terms import MINUS_ONE
from turntree.rewards.formula.syntax.walk import holds, ordered


def items_of(group: Group) -> tuple[Node, ...]:
    """Elements of a list, double signs expanded; a label of the first is a label of all."""
    items: list[Node] = []
    for item in group.items:
        spread = both_signs(item)
        items.extend(spread.items if isinstance(spread, Group) and spread is not item else (item,))
    first = items[0]
    if isinstance(first, Rel) and not any(isinstance(item, Rel) for item in items[1:]):
        value = labelled(first)[1]
        if value is not None:
            items[0] = value
    pairs = [labelled(item) if isinstance(item, Rel) else (None, None) for item in items]
    values = [value for _, value in pairs if value is not None]
    if len(values) == len(items) and len({ordered(name) for name, _ in pairs if name is not None}) == 1:
        return tuple(values)
    return tuple(items)


def by_name(group: Group) -> Group:
    """Labelled values in the order of their names, as a tuple has them: ``y = 2, x = 1`` as ``x = 1, y = 2``."""
    named = [(labelled(item)[0] if isinstance(item, Rel) else None, item) for item in group.items]
    if not all(isinstance(name, Sym) for name, _ in named) or len({ordered(name) for name, _ in named if name}) < 2:
        return group
    items = tuple(item for _, item in sorted(named, key=lambda pair: pair[0].name if isinstance(pair[0], Sym) else ""))
    return Group(items, group.opening, group.closing, group.word)


def distinct(items: tuple[Node, ...]) -> tuple[Node, ...]:
    """The items without those that repeat an earlier one up to order."""
    kept: dict[object, Node] = {}
    for item in items:
        kept.setdefault(ordered(item), item)
    return tuple(kept.values())


def both_signs(node: Node) -> Node:
    """A list of two if a double sign occurs, else the node itself."""
    if isinstance(node, Group | Rel) or not holds(node, Signed):
        return node
    if isinstance(node, SetOp):
        return node
    return Group((_signed(node, 1), _signed(node, -1)), "{", "}")


def _signed(node: Node, sign: int) -> Node:
    match node:
        case Signed(own, term):
            return _signed(term, sign) if own * sign > 0 else Mul((MINUS_ONE, _signed(term, sign)))
        case Add(terms):
            return Add(tuple(_signed(term, sign) for term in terms))
        case Mul(factors):
            return Mul(tuple(_signed(factor, sign) for factor in factors))
        case Pow(base, exponent):
            return Pow(_signed(base, sign), _signed(exponent, sign))
        case Quantity(value, unit):
            return Quantity(_signed(value, sign), unit)
    return node
