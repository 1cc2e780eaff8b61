r"""Forms in which a value is written: a power, a fraction, a mixed number, in lowest terms, expanded, ...

Values are not compared here: callers have already found them equal.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import gcd

from turntree.rewards.formula.quantities import without_unit
from turntree.rewards.formula.question.asked import flattened, parts
from turntree.rewards.formula.syntax.nodes import (
    MINUS_ONE,
    Add,
    Call,
    Const,
    Mul,
    Node,
    Num,
    Pow,
    Quantity,
    Ratio,
    Rel,
    Sym,
)
from turntree.rewards.formula.syntax.walk import free_variables, ordered, walk

_TEN = Num(Fraction(10))
_LARGEST_PRIME = 10**6  #: larger factors count as prime
_LARGEST_RADICAND = 10**8  #: for larger radicands, only factors up to the square root of this bound are tried
Form = Callable[[Node], bool]


def undivided(factor: Node) -> Node:
    return factor.base if isinstance(factor, Pow) and factor.exponent == MINUS_ONE else factor


def lowest(factors: tuple[Node, ...]) -> bool:
    above = [factor.value for factor in factors if isinstance(factor, Num)]
    below = [inner.value for factor in factors if (inner := undivided(factor)) is not factor and isinstance(inner, Num)]
    if len(above) > 1 or len(below) > 1:
        return False
    if any(number.denominator != 1 for number in (*above, *below)):
        return not below
    return not (above and below) or gcd(int(above[0]), int(below[0])) == 1


def is_in_lowest_terms(node: Node) -> bool:
    for part in walk(flattened(node)):
        if isinstance(part, Mul) and not lowest(tuple(one for one in part.factors if one != MINUS_ONE)):
            return False
        if isinstance(part, Ratio):
            terms = [one.value for one in part.items if isinstance(one, Num)]
            if len(terms) == len(part.items) and (gcd(*map(int, terms)) != 1 or any(n.denominator > 1 for n in terms)):
                return False
    return True


def is_factored(node: Node) -> bool:
    # A product of powers of primes, in any order.
    for factor in parts(flattened(node), Mul):
        base = factor.base if isinstance(factor, Pow) else factor
        if not isinstance(base, Num) or (base != MINUS_ONE and not _is_prime(base.value)):
            return False
    return True


def _is_prime(value: Fraction) -> bool:
    number = int(value)
    if value.denominator != 1 or number < 2:
        return False
    return number > _LARGEST_PRIME or all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def factors(node: Node) -> int:
    """Count the factors that contain a variable, with multiplicity; 0 for a sum."""
    flat = flattened(node)
    if isinstance(flat, Add):
        return 0
    times = 0
    for factor in parts(flat, Mul):
        if free_variables(factor):
            whole = isinstance(factor, Pow) and isinstance(factor.exponent, Num) and factor.exponent.value > 1
            times += int(factor.exponent.value) if whole else 1  # type: ignore[attr-defined]
    return times


def is_power(node: Node) -> bool:
    return any(isinstance(factor, Pow) and factor.exponent != MINUS_ONE for factor in parts(flattened(node), Mul))


def is_power_of(base: int) -> Form:
    def has(node: Node) -> bool:
        flat = flattened(node)
        return isinstance(flat, Pow) and flat.base == Num(Fraction(base))

    return has


def is_simplified(node: Node) -> bool:
    # No factor can be taken out of an integer's root, and no two terms differ only by a numerical factor.
    for part in walk(flattened(without_unit(node))):
        match part:
            case Add(terms):
                rests = [tuple(ordered(one) for one in parts(term, Mul) if not isinstance(one, Num)) for term in terms]
                if len(set(rests)) < len(rests):
                    return False
            case Pow(Num(value), Num(exponent)) if value.denominator == 1 and exponent.denominator > 1:
                number, degree = abs(int(value)), exponent.denominator
                candidates = range(2, int(min(number, _LARGEST_RADICAND) ** (1 / degree)) + 2)
                if any(number % factor**degree == 0 for factor in candidates):
                    return False
    return True


def is_sum(node: Node) -> bool:
    return isinstance(flattened(without_unit(node)), Add)


def is_expanded(node: Node) -> bool:
    flat = flattened(node)
    return isinstance(flat, Add) and not any(
        (isinstance(part, Mul) and any(isinstance(one, Add) for one in part.factors))
        or (isinstance(part, Pow) and isinstance(part.base, Add) and part.exponent != MINUS_ONE)
        for part in walk(flat)
    )


def has_square_of_sum(node: Node) -> bool:
    return any(isinstance(part, Pow) and isinstance(part.base, Add) for part in walk(flattened(node)))


def is_solved(node: Node) -> bool:
    return isinstance(node, Rel) and isinstance(node.terms[0], Sym)


def is_fraction(node: Node) -> bool:
    return not isinstance(node, Quantity) and not any(isinstance(one, Num) and one.decimals > 0 for one in walk(node))


def is_improper(node: Node) -> bool:
    return is_fraction(node) and not isinstance(flattened(without_unit(node)), Add)


def is_decimal(node: Node) -> bool:
    percent = isinstance(node, Quantity) and node.unit == "%"
    return not percent and isinstance(flattened(without_unit(node)), Num)


def is_mixed(node: Node) -> bool:
    flat = flattened(without_unit(node))
    if isinstance(flat, Mul) and flat.factors[0] == MINUS_ONE:
        flat = flat.factors[-1]
    return isinstance(flat, Add) or (isinstance(flat, Num) and flat.value.denominator == 1)


def is_scientific(node: Node) -> bool:
    # Includes numbers such as 1.2e6.
    node = without_unit(node)
    if isinstance(node, Num):
        return node.decimals == 0
    each = parts(flattened(node), Mul)
    powers = [one for one in each if isinstance(one, Pow) and one.base == _TEN]
    others = [one for one in each if one not in powers]
    small = all(isinstance(one, Num) and 1 <= abs(one.value) < 10 for one in others)
    return len(powers) == 1 and len(others) <= 1 and small


def has_no_degrees(node: Node) -> bool:
    return not (isinstance(node, Quantity) and node.unit == "deg")


def has_no_pi(node: Node) -> bool:
    return Const("pi") not in walk(node)


def is_polar(node: Node) -> bool:
    return any(
        (isinstance(part, Pow) and part.base == Const("e")) or (isinstance(part, Call) and part.name in ("cos", "cis"))
        for part in walk(node)
    )


def is_rectangular(node: Node) -> bool:
    return not is_polar(node) and Const("i") in walk(node)
