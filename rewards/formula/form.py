r"""The form in which a question wants its answer, such as a power, a fraction or a prime factorization.

A form is required where the question names it and the gold answer has it: a question that is misread, or a gold answer
that does not keep to it, makes no answer wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from turntree.rewards.formula.asked import flattened, parts, pieces, shape, without_unit
from turntree.rewards.formula.syntax.nodes import Add, Const, Mul, Node, Num, Pow, Quantity, Rel
from turntree.rewards.formula.syntax.terms import MINUS_ONE
from turntree.rewards.formula.syntax.walk import walk

_TEN = Num(Fraction(10))
_LARGEST_PRIME = 10**6
"""Where a factor is larger, nobody asks whether it is prime."""


def lacks_form(question: str, gold: Node, answer: Node) -> bool:
    """Whether a right answer has another form than the question asks for and the gold answer has.

    Args:
        question: The question asked of the policy.
        gold: The right answer.
        answer: An answer that is equal to it.
    """
    gold, answer = _last(gold), _last(answer)
    return any(has(gold) and not has(answer) for has in _asked_forms(question)) or _is_not_converted(
        question, gold, answer
    )


def contradicts(question: str, answer: Node) -> bool:
    """Whether an answer says of a side of one of the question's equations that it has another value.

    For ``2x = 14`` in a question that is ``2x = 7``, and ``x = 7`` beside ``x = 6``.
    """
    if not isinstance(answer, Rel) or len(answer.terms) != 2 or answer.signs != ("=",):
        return False
    left, value = (flattened(without_unit(side)) for side in answer.terms if side is not None)
    if not isinstance(value, Num):
        return False
    for piece in pieces(question):
        match piece.node:
            case Rel((Node() as side, Num(stated)), ("=",)) if shape(side) == shape(left):
                if stated != value.value:
                    return True
    return False


def _last(node: Node) -> Node:
    """What a chain of equations ends with."""
    return node.terms[-1] or node if isinstance(node, Rel) else node


def _is_factored(node: Node) -> bool:
    """A product of powers of primes, in any order."""
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


def _is_power(node: Node) -> bool:
    return any(isinstance(factor, Pow) and factor.exponent != MINUS_ONE for factor in parts(flattened(node), Mul))


def _is_power_of(base: int) -> Callable[[Node], bool]:
    def has(node: Node) -> bool:
        flat = flattened(node)
        return isinstance(flat, Pow) and flat.base == Num(Fraction(base))

    return has


def _is_fraction(node: Node) -> bool:
    """No decimal point and no percent sign."""
    return not isinstance(node, Quantity) and not any(isinstance(one, Num) and one.decimals > 0 for one in walk(node))


def _is_decimal(node: Node) -> bool:
    """A number written in digits, with a sign and a unit if need be."""
    flat = flattened(without_unit(node))
    return isinstance(flat, Num)


def _is_mixed(node: Node) -> bool:
    flat = flattened(without_unit(node))
    if isinstance(flat, Mul) and flat.factors[0] == MINUS_ONE:
        flat = flat.factors[-1]
    return isinstance(flat, Add) or (isinstance(flat, Num) and flat.value.denominator == 1)


def _is_scientific(node: Node) -> bool:
    r"""A number from 1 to 10 and a power of ten; ``1.2e6`` and the like as well."""
    node = without_unit(node)
    if isinstance(node, Num):
        return node.decimals == 0
    factors = parts(flattened(node), Mul)
    powers = [one for one in factors if isinstance(one, Pow) and one.base == _TEN]
    others = [one for one in factors if one not in powers]
    small = all(isinstance(one, Num) and 1 <= abs(one.value) < 10 for one in others)
    return len(powers) == 1 and len(others) <= 1 and small


def _has_no_degrees(node: Node) -> bool:
    return not (isinstance(node, Quantity) and node.unit == "deg")


def _has_no_pi(node: Node) -> bool:
    return Const("pi") not in walk(node)


_KINDS = "common|proper|improper|reduced|simplified|simple|single|vulgar|exact"
_FORMS: tuple[tuple[re.Pattern[str], Callable[[Node], bool]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), has)
    for pattern, has in (
        (r"prime factori[sz]ation|(?:product|powers) of (?:\w+ )?primes?|into (?:its )?prime factors", _is_factored),
        (r"in exponential (?:form|notation)|(?:as|with|using) (?:a )?(?:single )?(?:power|exponents?)\b", _is_power),
        (rf"\b(?:as|to|into|in the form of) an? (?:(?:{_KINDS}) )*fraction", _is_fraction),
        (r"\b(?:as|to|into|in the form of) an? (?:quotient|ratio) of (?:two )?integers", _is_fraction),
        (
            r"\b(?:as|to|into) an? (?:(?:exact|repeating) )?decimal|in decimal (?:form|notation)",
            _is_decimal,
        ),
        (r"decimal places?|to the nearest (?:ten|hundred|thousand)th", _is_decimal),
        (r"\b(?:as|to|into) an? mixed (?:number|fraction|numeral)", _is_mixed),
        (r"in scientific (?:notation|form)", _is_scientific),
        (r"\b(?:in|to|into|as) radians?\b|\bradian measure", _has_no_degrees),
        (r"\b(?:in|to|into) degrees\b", _has_no_pi),
    )
)
_POWER_OF = re.compile(
    r"(?:as|into) (?:a |some )?(?:whole |integer |integral )?power of (?:\$|\\\()?\s*(\d{1,6}|two|three|five|ten)\b"
)
_NUMBERS = {"two": 2, "three": 3, "five": 5, "ten": 10}


@lru_cache(maxsize=64)
def _asked_forms(question: str) -> tuple[Callable[[Node], bool], ...]:
    found = [has for pattern, has in _FORMS if pattern.search(question)]
    bases = [_NUMBERS.get(word) or int(word) for word in _POWER_OF.findall(question)]
    return (*found, *map(_is_power_of, bases))


def _is_not_converted(question: str, gold: Node, answer: Node) -> bool:
    """Whether an answer is a quantity of the question, in another unit than the gold answer's."""
    match gold, answer:
        case Quantity(_, wanted), Quantity(Num(value), unit) if unit.rstrip("s") != wanted.rstrip("s"):
            numbers = (one.replace(",", "") for one in re.findall(r"(?<![\d.])\d[\d,]*(?:\.\d+)?", question))
            return any(Fraction(number) == value for number in numbers)
    return False
