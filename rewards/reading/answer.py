"""The final answer of a text, and exact equality of numbers.

Covered: answers of the form ``#### x`` and plain numbers. Not covered: boxes, units, symbolic equality. Regular
expressions parse text into fractions. Nothing is evaluated, and long input is refused.
"""

from __future__ import annotations

import re
from fractions import Fraction

from turntree.rewards.reading.thoughts import may_think, without_thoughts

_MARK = "####"
_MAX_LENGTH = 200
_MONEY = re.compile(r"\s*([+-]?)\s*\\?\$")
_MARKS = re.compile(r"(?:\s*\\?[$%])+\s*$")
_DIGITS = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_NUMBER = re.compile(rf"([+-]?)\s*({_DIGITS})(?:\s*/\s*({_DIGITS}))?")


def final_answer(text: str) -> str | None:
    r"""Return the text after the last ``####``, up to the end of the line; thoughts are ignored.

    Args:
        text: The policy's own text, without text of the environment.

    Returns:
        The answer without surrounding blanks or a final full stop; ``None`` if there is no answer.

    Example:
        >>> final_answer("3*4 is 12, so\n#### 12")
        '12'
    """
    spoken = without_thoughts(text)[0] if may_think(text) else text
    _, mark, rest = spoken.rpartition(_MARK)
    line = rest.strip(" \t").split("\n", 1)[0].strip()
    answer = line if line.endswith("..") else line.removesuffix(".").strip()
    return answer if mark and answer else None


def same_number(answer: str, gold: str) -> bool:
    """Return whether two texts are exactly the same number.

    Thousands separators, ``$``, ``%`` and trailing zeros do not matter; ``a/b`` is a fraction. If the gold answer is a
    percentage, its decimal form counts too (25 % is 0.25). Text that is not a number equals nothing.

    Example:
        >>> same_number("$1,200.00", "1200"), same_number("0.5", "1/2"), same_number("0.333", "1/3")
        (True, True, False)
    """
    ours, right = parse_number(answer), parse_number(gold)
    if ours is None or right is None:
        return False
    decimal_of_percentage = "%" in gold and "%" not in answer and ours * 100 == right
    return ours == right or decimal_of_percentage


def parse_number(text: str) -> Fraction | None:
    """Parse a number, ignoring ``$`` and ``%``; return ``None`` for any other text."""
    if len(text) > _MAX_LENGTH:
        return None
    text = text.replace("\N{MINUS SIGN}", "-")
    if (money := _MONEY.match(text)) is not None:
        text = money[1] + text[money.end() :]
    match = _NUMBER.fullmatch(_MARKS.sub("", text).strip())
    if match is None:
        return None
    sign, numerator, denominator = match.groups()
    value = Fraction(numerator.replace(",", "").rstrip("."))
    if denominator is not None:
        divisor = Fraction(denominator.replace(",", "").rstrip("."))
        if divisor == 0:
            return None
        value /= divisor
    return -value if sign == "-" else value
