"""Values with units. An answer may add or omit the unit, but must not contradict it."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from turntree.rewards.formula.syntax.nodes import Add, Group, Mul, Node, Num, Pow, Quantity, Sym
from turntree.rewards.formula.syntax.problems import Suspect
from turntree.rewards.formula.syntax.walk import free_variables
from turntree.rewards.formula.units import Unit, read_unit
from turntree.rewards.formula.words import check_words, is_second_answer, opposed
from turntree.rewards.reading import flags


def without_unit(node: Node) -> Node:
    return node.value if isinstance(node, Quantity) else node


def unit_of(node: Node) -> Unit | None:
    # Returns None also for unit words without meaning, such as "total".
    return read_unit(node.unit) if isinstance(node, Quantity) else None


def in_one_unit(gold: Node, answer: Node) -> tuple[Node, Node] | None:
    """Return the values of two quantities in the gold answer's unit; ``None`` if their words conflict.

    Raises:
        Suspect: Words of the answer negate or hedge its value, or name a second answer.
    """
    words, ours = (node.unit if isinstance(node, Quantity) else "" for node in (gold, answer))
    check_words(ours)
    if is_second_answer(ours, beside=words):
        raise Suspect(flags.CANDIDATES)
    unit, other = unit_of(gold), unit_of(answer)
    if opposed(words, ours) or (unit and other and unit.dimension != other.dimension):
        return None
    values = without_unit(gold), without_unit(answer)
    if unit is None or other is None or unit.factor == other.factor:
        return values
    return values[0], Mul((Num(other.factor / unit.factor), values[1]))


def spelled_out(node: Node, other: Node) -> Node:
    """Turn a quantity into a product if the letters of its unit are the other side's variables: ``4 V``."""
    if isinstance(node, Quantity) and not isinstance(other, Quantity):
        letters = [letter for word in node.unit.split() for letter in word]
        if letters and len(set(letters)) == len(letters) and set(letters) == free_variables(other):
            return Mul((node.value, *map(Sym, letters)))
    if isinstance(node, Quantity) and "k" in (words := node.unit.split()) and "k" not in free_variables(other):
        words.remove("k")
        scaled = Mul((Num(Fraction(1000)), node.value))
        return Quantity(scaled, " ".join(words)) if words else scaled
    if isinstance(other, Quantity) and isinstance(node, Mul):
        return _as_quantity(node)
    return node


def _as_quantity(product: Mul) -> Node:
    # A number times a quotient of letters that is a known unit: 5\frac{m}{s}.
    values: list[Node] = []
    above: list[str] = []
    below: list[str] = []
    stack = [*product.factors]
    while stack:
        match factor := stack.pop(0):
            case Mul(inner):
                stack[:0] = inner
            case Sym(name):
                above.append(name)
            case Pow(Mul(inner), Num(exponent)) if exponent == -1:
                stack[:0] = [Pow(one, Num(exponent)) for one in inner]
            case Pow(Pow(Sym() as base, Num(inner_exponent)), Num(exponent)) if exponent == -1:
                stack.insert(0, Pow(base, Num(-inner_exponent)))
            case Pow(Sym(name), Num(exponent)) if exponent.denominator == 1:
                (above if exponent > 0 else below).extend([name, f"^{abs(exponent)}"] if abs(exponent) > 1 else [name])
            case _:
                values.append(factor)
    unit = " ".join([*above, "/", *below])
    known = read_unit(unit) if above and below and values else None
    if known is None or not known.known or any(map(free_variables, values)):
        return product
    return Quantity(values[0] if len(values) == 1 else Mul(tuple(values)), unit)


def united(node: Node) -> Node:
    """Join a quantity in several units: ``1 hour 30 minutes`` becomes 90 minutes.

    All units must have the same dimension, each smaller than the one before.
    """
    if not isinstance(node, Add | Group):
        return node
    parts = (
        node.terms if isinstance(node, Add) else node.items if isinstance(node, Group) and node.word == "and" else ()
    )
    units = [read_unit(part.unit) for part in parts if isinstance(part, Quantity)]
    if len(units) < 2 or len(units) < len(parts):
        return node
    known = [unit for unit in units if unit is not None and unit.known]
    falling = all(one.factor > other.factor for one, other in pairwise(known))
    if len(known) < len(units) or len({unit.dimension for unit in known}) > 1 or not falling:
        return node
    last = parts[-1]
    assert isinstance(last, Quantity)
    values = tuple(part.value for part in parts if isinstance(part, Quantity))
    sizes = [Num(unit.factor / known[-1].factor) for unit in known]
    return Quantity(Add(tuple(Mul((size, value)) for size, value in zip(sizes, values, strict=True))), last.unit)
