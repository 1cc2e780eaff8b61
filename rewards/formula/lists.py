"""Elements of lists and sets."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from turntree.rewards.formula.labels import labelled
from turntree.rewards.formula.syntax.nodes import (
    MINUS_ONE,
    Add,
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
from turntree.rewards.formula.syntax.walk import free_variables, holds, ordered, walk
from turntree.rewards.formula.values.evaluate import Evaluation
from turntree.rewards.limits import MAX_ELEMENTS, LimitExceeded

_DOTS = ("ldots", "dots", "cdots")
_MOST_SIGNS = 4


def items_of(group: Group) -> tuple[Node, ...]:
    """Return the elements of a list, with plus-minus expanded; a label of the first applies to all."""
    items: list[Node] = []
    for item in group.items:
        spread = both_signs(item)
        items.extend(spread.items if isinstance(spread, Group) and spread is not item else (item,))
    items = _without_dots(items)
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


def _without_dots(items: list[Node]) -> list[Node]:
    # Replace an ellipsis between equally spaced whole numbers by these numbers: 1, 2, \dots, 10.
    indices = [index for index, item in enumerate(items) if isinstance(item, Sym) and item.name in _DOTS]
    if len(indices) != 1 or not 2 <= indices[0] < len(items) - 1:
        return items
    known = [item.value for item in items if isinstance(item, Num) and item.value.denominator == 1]
    step = known[1] - known[0] if len(known) == len(items) - 1 else 0
    if not step or not 0 < (known[-1] - known[0]) / step < MAX_ELEMENTS or (known[-1] - known[0]) % step:
        return items
    filled = [known[0] + step * index for index in range(int((known[-1] - known[0]) / step) + 1)]
    given = filled[: indices[0]] + filled[len(filled) - (len(items) - indices[0] - 1) :]
    return [Num(value) for value in filled] if given == known else items


def without_domain(gold: Node, answer: Node) -> tuple[Node, Node]:
    r"""Drop the points that are excluded from the domains of both values: ``x + 1, x \ne 1``.

    The answer may exclude points at which the gold answer has no value, and may omit points that the gold answer
    excludes.
    """
    if not isinstance(gold, Group) and not isinstance(answer, Group):
        return gold, answer
    right, excluded = _domain(gold)
    ours, others = _domain(answer)
    if others and not excluded and all(_is_undefined(gold, point) for point in others):
        return gold, ours
    return (right, answer) if excluded and not others and not isinstance(answer, Group | Rel) else (gold, answer)


def _domain(node: Node) -> tuple[Node, list[dict[str, Fraction]]]:
    # If anything but exclusions stands beside the value, this is a list, not a value with a domain.
    if not isinstance(node, Group) or node.opening or isinstance(node.items[0], Rel):
        return node, []
    points: list[dict[str, Fraction]] = []
    for item in node.items[1:]:
        match item:
            case Rel((Sym(name), Num(value)), ("!=",)):
                points.append({name: value})
            case _:
                return node, []
    return node.items[0], points


def _is_undefined(node: Node, point: dict[str, Fraction]) -> bool:
    try:
        Evaluation({**dict.fromkeys(free_variables(node), Fraction(7, 3)), **point}).value(node)
    except Undefined:
        return True
    except (CannotEvaluate, LimitExceeded):
        return False
    return False


def by_name(group: Group) -> Group:
    """Order labelled values by name, as in a tuple: ``y = 2, x = 1`` becomes ``x = 1, y = 2``."""
    named = [(labelled(item)[0] if isinstance(item, Rel) else None, item) for item in group.items]
    if not all(isinstance(name, Sym) for name, _ in named) or len({ordered(name) for name, _ in named if name}) < 2:
        return group
    items = tuple(item for _, item in sorted(named, key=lambda pair: pair[0].name if isinstance(pair[0], Sym) else ""))
    return Group(items, group.opening, group.closing, group.word)


def distinct(items: tuple[Node, ...]) -> tuple[Node, ...]:
    kept: dict[object, Node] = {}
    for item in items:
        kept.setdefault(ordered(item), item)
    return tuple(kept.values())


def both_signs(node: Node) -> Node:
    if isinstance(node, Group | Rel) or not holds(node, Signed):
        return node
    if isinstance(node, SetOp):
        return node
    if isinstance(node, Add) and all(part.sign > 0 for part in walk(node) if isinstance(part, Signed)):
        indices = [index for index, term in enumerate(node.terms) if isinstance(term, Signed)]
        # With independent signs in one sum, every sign doubles the number of values, hence the bound.
        if 1 < len(indices) <= _MOST_SIGNS:  # each plus-minus varies on its own
            return Group(
                tuple(_chosen(node, indices, signs) for signs in product((1, -1), repeat=len(indices))), "{", "}"
            )
    return Group((_signed(node, 1), _signed(node, -1)), "{", "}")


def _chosen(node: Add, indices: list[int], signs: tuple[int, ...]) -> Node:
    terms = list(node.terms)
    for index, sign in zip(indices, signs, strict=True):
        terms[index] = _signed(terms[index], sign)
    return Add(tuple(terms))


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
