from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from turntree.rewards.answer_format import AnswerFormat, Kind
from turntree.rewards.reading.answer import parse_number
from turntree.rewards.reading.extract import Answer
from turntree.rewards.result import Verdict

_STRING = Verdict(correct=True, method="string")
_NUMBER = {True: Verdict(correct=True, method="number"), False: Verdict(correct=False, method="number")}
_MAX_LENGTH = 40
_MAX_DECIMALS = 11


def compare_fast(gold: str, answer: Answer, answer_format: AnswerFormat, question: str = "") -> Verdict | None:
    """Return the verdict on equal strings and plain numbers, ``None`` for everything else.

    It only decides cases in which the full comparison would decide the same.

    Example:
        >>> from turntree.rewards.answer_format import EXACT
        >>> compare_fast("1200", Answer("1,200.0"), EXACT).correct
        True
    """
    if answer.candidates or answer.alternatives or answer_format.kind is Kind.OPTION:
        return None
    text = answer.text
    if text == gold and text.strip():
        return _STRING
    if answer_format.is_tolerant:
        return None
    right = _number(gold)
    if right is None:
        return None
    if (question or answer_format.kind is Kind.INTEGER) and "/" in text:
        return None
    ours = _number(text)
    return None if ours is None else _NUMBER[ours == right]


@lru_cache(maxsize=4096)
def _number(text: str) -> Fraction | int | None:
    # Percentages and long decimals have rules of their own in the full comparison.
    if len(text) > _MAX_LENGTH:
        return None
    if text.isdecimal() and text.isascii():
        return int(text)
    if "%" in text or len(text.partition(".")[2]) > _MAX_DECIMALS:
        return None
    return parse_number(text)
