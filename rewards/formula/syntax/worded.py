"""Values with words: some words scale or change the value, all others are its unit."""

from __future__ import annotations

from fractions import Fraction

from turntree.rewards.formula.syntax.nodes import MINUS_ONE, Call, Mul, Node, Num, Pow, Quantity
from turntree.rewards.formula.syntax.problems import Malformed
from turntree.rewards.formula.syntax.walk import free_variables
from turntree.rewards.reading.scales import ASKING, CHANGING, OPERATIONS, SCALES, changes_unknown

_EXPONENTS = {"square": "2", "cube": "3", "root": "1/2", "cube root": "1/3", "reciprocal": "-1"}
_OF_UNITS = frozenset(("square", "sq", "cubic"))
_MONEY = frozenset("$\u20ac\u00a3")


def worded(before: list[str], node: Node, after: list[str]) -> Node:
    """Apply the words before and after a value.

    Raises:
        Malformed: A word may change the value in an unknown way.
    """
    if not free_variables(node):
        node, before = _operated(before, node)
        node, after = _scaled(node, after)
    unit = " ".join((*before, *after)).strip()
    return Quantity(node, unit) if unit else node


def _operated(before: list[str], node: Node) -> tuple[Node, list[str]]:
    signs = [word for word in before if word in _MONEY]
    words = " ".join(word for word in before if word not in _MONEY).removesuffix(" the")
    if words.split()[:1] and words.split()[0] in ASKING:
        raise Malformed("a question")
    while words:
        for pattern, operation in reversed(OPERATIONS):
            if (match := pattern.search(words)) is not None:
                words = words[: match.start()].strip().removesuffix(" the").removesuffix("the")
                node = _applied(operation, node)
                break
        else:
            break
    if changes_unknown(words):
        raise Malformed(f"words that may change a value: {words!r}")
    return node, [*words.split(), *signs]


def _applied(operation: str, node: Node) -> Node:
    if operation == "negated":
        return Mul((MINUS_ONE, node)) if not isinstance(node, Num) else Num(-node.value, node.decimals)
    if operation in _EXPONENTS:
        return Pow(node, Num(Fraction(_EXPONENTS[operation])))
    return Mul((Num(Fraction(operation)), node))


def _scaled(node: Node, after: list[str]) -> tuple[Node, list[str]]:
    rest = list(after)
    while rest:
        word = rest[0].lower()
        if word in SCALES:
            node = Mul((Num(SCALES[word]), node))
        elif word in ("squared", "cubed"):
            node = Pow(node, Num(Fraction(2 if word == "squared" else 3)))
        elif word == "factorial":
            node = Call("factorial", (node,))
        else:
            break
        del rest[0]
    lower = [word.lower() for word in rest]
    if lower != ["times"] and not all(_belongs(lower, place) for place in range(len(lower))):
        raise Malformed(f"words that may change a value: {' '.join(rest)!r}")
    return node, rest


def _belongs(words: list[str], place: int) -> bool:
    # A power word belongs to the unit beside it; other words that change a value do not.
    word = words[place]
    power = (word in _OF_UNITS and place + 1 < len(words)) or (word in ("squared", "cubed") and place > 0)
    return power or word not in CHANGING
