from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from turntree.rewards.formula.syntax.nodes import (
    Add,
    Applied,
    Big,
    Builder,
    Call,
    Cases,
    Const,
    Group,
    Matrix,
    Mul,
    Node,
    Pow,
    Quantity,
    Ratio,
    Rel,
    Residue,
    SetOp,
    Signed,
    Sym,
    Undone,
)


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Add(parts) | Mul(parts) | Ratio(parts) | Undone(_, parts) | Call(_, parts) | Group(items=parts):
            return parts
        case Applied(_, parts):
            return parts
        case Residue(name, value, modulus):
            return (value, modulus) if name is None else (name, value, modulus)
        case Pow(left, right) | SetOp(_, left, right) | Builder(left, right):
            return (left, right)
        case Signed(_, inner) | Quantity(inner, _):
            return (inner,)
        case Big(low=low, high=high, body=body):
            return (low, high, body)
        case Rel(terms):
            return tuple(term for term in terms if term is not None)
        case Matrix(rows) | Cases(rows):
            return tuple(entry for row in rows for entry in row)
    return ()


def walk(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        here = stack.pop()
        yield here
        stack.extend(children(here))


@lru_cache(maxsize=512)
def free_variables(node: Node) -> frozenset[str]:
    # The index of a sum is bound, so it is not a free variable.
    match node:
        case Sym(name):
            return frozenset((name,))
        case Big(index=index, low=low, high=high, body=body):
            return free_variables(low) | free_variables(high) | (free_variables(body) - {index})
    names: frozenset[str] = frozenset()
    for child in children(node):
        names |= free_variables(child)
    return names


def holds(node: Node, *kinds: type[Node]) -> bool:
    return any(isinstance(inner, kinds) for inner in walk(node))


def is_undone(node: Node) -> bool:
    return any(
        isinstance(inner, Undone) or (isinstance(inner, Big) and inner.high == Const("inf")) for inner in walk(node)
    )


def is_complex(node: Node) -> bool:
    return any(isinstance(inner, Const) and inner.name == "i" for inner in walk(node))


def ordered(node: Node) -> object:
    """Return a normal form in which sums and products that differ only in order are equal."""
    match node:
        case Add(parts) | Mul(parts):
            return (type(node).__name__, tuple(sorted((ordered(part) for part in parts), key=repr)))
        case Group(items, "{", _, _):
            return ("set", tuple(sorted((ordered(item) for item in items), key=repr)))
        case Group(items, opening, closing, _):
            return ("group", opening, closing, tuple(ordered(item) for item in items))
        case Rel(terms, signs):
            return ("rel", signs, tuple(None if term is None else ordered(term) for term in terms))
        case Big(kind, index, low, high, body):
            return (kind, index, ordered(low), ordered(high), ordered(body))
        case Call(name, args) | Undone(name, args) | Applied(name, args):
            return (type(node).__name__, name, tuple(ordered(arg) for arg in args))
        case Pow(base, exponent):
            return ("pow", ordered(base), ordered(exponent))
        case Signed(sign, term):
            return ("signed", sign, ordered(term))
        case Quantity(value, unit):
            return ("quantity", unit, ordered(value))
        case SetOp("cup" | "cap" as sign):
            return (sign, tuple(sorted(map(ordered, _operands(node, sign)), key=repr)))
        case SetOp(sign, left, right):
            return (sign, ordered(left), ordered(right))
    return node


def _operands(node: Node, sign: str) -> Iterator[Node]:
    if isinstance(node, SetOp) and node.sign == sign:
        yield from _operands(node.left, sign)
        yield from _operands(node.right, sign)
    else:
        yield node


def replaced(node: Node, values: Mapping[str, Node]) -> Node:
    # The index of a sum or product (Big) is bound, so such nodes are not changed.
    match node:
        case Sym(name):
            return values.get(name, node)
        case Add(parts) | Mul(parts) | Ratio(parts):
            return type(node)(tuple(replaced(part, values) for part in parts))
        case Call(name, parts) | Applied(name, parts):
            return type(node)(name, tuple(replaced(part, values) for part in parts))
        case Pow(base, exponent):
            return Pow(replaced(base, values), replaced(exponent, values))
        case Rel(terms, signs):
            return Rel(tuple(None if term is None else replaced(term, values) for term in terms), signs)
        case Builder(element, condition):
            return Builder(replaced(element, values), replaced(condition, values))
        case Group(items, opening, closing, word):
            return Group(tuple(replaced(item, values) for item in items), opening, closing, word)
    return node
