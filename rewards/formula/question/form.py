r"""The form in which a question wants its answer, such as a power, a fraction or a prime factorization.

A form is required only if the question names it and the gold answer has it. So a question that is misread does not make
a right answer wrong.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from turntree.rewards.formula.quantities import without_unit
from turntree.rewards.formula.question import shapes
from turntree.rewards.formula.question.asked import flattened, pieces, shape
from turntree.rewards.formula.question.shapes import Form
from turntree.rewards.formula.syntax.nodes import Node, Num, Quantity, Rel
from turntree.rewards.formula.syntax.walk import free_variables


def lacks_form(question: str, gold: Node, answer: Node) -> bool:
    """Return whether a right answer lacks the form that the question asks for and the gold answer has."""
    asked = _asked_forms(question)
    if shapes.is_solved in asked and isinstance(answer, Rel):
        return shapes.is_solved(gold) and not shapes.is_solved(answer)
    gold, answer = _last(gold), _last(answer)
    return any(has(gold) and not has(answer) for has in asked) or any(
        lacks(question, gold, answer) for lacks in (_is_not_converted, _is_not_factored, _is_no_percentage)
    )


def contradicts(question: str, answer: Node) -> bool:
    """Return whether an answer contradicts an equation of the question.

    Examples: ``2x = 14`` for the question's ``2x = 7``, and ``x = 7`` beside ``x = 6``.
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
    return node.terms[-1] or node if isinstance(node, Rel) else node


_KINDS = "common|proper|improper|reduced|simplified|simple|single|vulgar|exact|irreducible"
_BEGINS = r"(?:^|[.;:?!\n]\s*|\b(?:and|then|completely|please|to)\s+)"
#: each row: words that select it, the phrase that must then occur, and the form that this phrase asks for
_FORMS: tuple[tuple[tuple[str, ...], re.Pattern[str], Form], ...] = tuple(
    (tuple(words.split()), re.compile(pattern, re.IGNORECASE), has)
    for words, pattern, has in (
        (
            "prime",
            r"prime factori[sz]ation|(?:product|powers) of (?:\w+ )?primes?|into (?:its )?prime(?: factor)?s",
            shapes.is_factored,
        ),
        (
            "exponent power",
            r"in exponential (?:form|notation)|(?:as|with|using) (?:a )?(?:single )?(?:power|exponents?)\b",
            shapes.is_power,
        ),
        ("improper", r"\b(?:as|to|into) an? improper fraction", shapes.is_improper),
        ("fraction", rf"\b(?:as|to|into|in the form of) an? (?:(?:{_KINDS}) )*fraction", shapes.is_fraction),
        (
            "integers",
            r"\b(?:as|to|into|in the form of) an? (?:quotient|ratio) of (?:two )?integers",
            shapes.is_fraction,
        ),
        (
            "lowest simplest reduced irreducible",
            r"\b(?:in|to|into) (?:its |the )?(?:lowest|simplest|reduced) (?:terms|form)|"
            r"(?:reduced|irreducible) fraction",
            shapes.is_in_lowest_terms,
        ),
        (
            "decimal",
            r"\b(?:as|to|into) an? (?:(?:exact|repeating|terminating) )?decimal|in decimal (?:form|notation)",
            shapes.is_decimal,
        ),
        ("decimal nearest", r"decimal places?|to the nearest (?:ten|hundred|thousand)th", shapes.is_decimal),
        ("mixed", r"\b(?:as|to|into) an? mixed (?:number|fraction|numeral)", shapes.is_mixed),
        ("scientific", r"in scientific (?:notation|form)", shapes.is_scientific),
        ("radian", r"\b(?:in|to|into|as) radians?\b|\bradian measure", shapes.has_no_degrees),
        ("degrees", r"\b(?:in|to|into) degrees\b", shapes.has_no_pi),
        ("simplif radical", r"\bsimplif(?:y|ied)\b|simplest radical", shapes.is_simplified),
        ("expand multiply", rf"{_BEGINS}expand\b|\bexpand the\b|multiply out", shapes.is_expanded),
        ("expanded", r"\b(?:in|into) expanded (?:form|notation)", shapes.is_sum),
        ("vertex square", r"\bvertex form|complet(?:e|ing) the square|completed[- ]square", shapes.has_square_of_sum),
        ("intercept", r"\bslope[- ]intercept form", shapes.is_solved),
        ("form", r"\bpolar form|(?:exponential|trigonometric) form", shapes.is_polar),
        ("form", r"\brectangular form|\bform\s+\$?\s*[ax]\s*\+\s*[by]i", shapes.is_rectangular),
    )
)
_POWER_OF = re.compile(
    r"(?:as|into) (?:a |some )?(?:whole |integer |integral )?power of (?:\$|\\\()?\s*(\d{1,6}|two|three|five|ten)\b|"
    r"(?:as|in the form|of the form)\s+(?:\$|\\\()\s*(\d{1,6})\s*\^\s*\{?\s*[a-z]\s*\}?\s*(?:\$|\\\))"
)
_NUMBERS = {"two": 2, "three": 3, "five": 5, "ten": 10}
_FACTOR = re.compile(
    rf"{_BEGINS}factor\b(?! of)|factor (?:completely|the (?:expression|polynomial|following|quadratic|trinomial))|"
    r"\bfactored\b|factori[sz]e\b",
    re.IGNORECASE,
)
_PERCENT = re.compile(r"\b(?:as|to|into) (?:a )?percent(?:age)?\b|\bpercent form", re.IGNORECASE)


@lru_cache(maxsize=64)
def _asked_forms(question: str) -> tuple[Form, ...]:
    asked = question.lower()
    found = [
        has
        for words, pattern, has in _FORMS
        if any(word in asked for word in words) and pattern.search(question) is not None
    ]
    bases = [word or base for word, base in _POWER_OF.findall(question)] if "power" in asked or "^" in asked else ()
    return (*found, *(shapes.is_power_of(_NUMBERS.get(word) or int(word)) for word in bases))


def _is_not_factored(question: str, gold: Node, answer: Node) -> bool:
    wanted = shapes.factors(gold) if free_variables(gold) else 0
    return wanted > 0 and shapes.factors(answer) < wanted and _FACTOR.search(question) is not None


def _is_no_percentage(question: str, gold: Node, answer: Node) -> bool:
    if not (isinstance(gold, Quantity) and gold.unit == "%") or isinstance(answer, Quantity):
        return False
    return shape(flattened(answer)) != shape(flattened(gold.value)) and _PERCENT.search(question) is not None


def _is_not_converted(question: str, gold: Node, answer: Node) -> bool:
    # The answer copies a value of the question whose unit was to be converted.
    match gold, answer:
        case Quantity(_, wanted), Quantity(Num(value), unit) if unit.rstrip("s") != wanted.rstrip("s"):
            numbers = (one.replace(",", "") for one in re.findall(r"(?<![\d.])\d[\d,]*(?:\.\d+)?", question))
            return any(Fraction(number) == value for number in numbers)
    return False
