r"""Numbers in a base: ``1101_2``, ``(2A)_{16}``, ``\text{A5}_{11}``, ``1011 in base 2``.

A letter is a digit only after a digit of the base, or in a text command.
"""

from __future__ import annotations

import re

from turntree.rewards.formula.syntax.nodes import Based
from turntree.rewards.formula.syntax.problems import Malformed

_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_STYLE = re.compile(
    r"\\(?:text(?:bf|it|rm|tt|sf)?|math(?:rm|bf|tt|sf|it|ord)|mbox|operatorname|left|right|displaystyle)(?![a-zA-Z])|"
    r"\\[,!;: ]|(?<!\\)[${}~\s]"
)
_DIGITS = r"\(?([0-9A-Za-z]{1,60}?(?:\.[0-9A-Za-z]{1,60}?)?)\)?"
_BASE = rf"([0-9]{{1,2}}|{'|'.join(_WORDS)})"
_NUMERAL = re.compile(rf"{_DIGITS}(?:_\(?(?:base)?{_BASE}\)?|,?\(?(?:in)?base{_BASE}\)?)?\.?")

_PREFIXED = re.compile(r"0(?:x(?P<x>[0-9a-fA-F]{1,60})|b(?P<b>[01]{1,200})|o(?P<o>[0-7]{1,80}))")
_PREFIXES = {"x": "16", "b": "2", "o": "8"}


def based(digits: str, index: str) -> Based:
    index = index.rstrip(".")
    base = _WORDS.get(index) or (int(index) if index.isdigit() and len(index) < 3 else 0)
    if not 2 <= base <= 36:
        raise Malformed(f"a number with the index {index!r}")
    if any(not digit.isalnum() or int(digit, 36) >= base for digit in digits.replace(".", "", 1)):
        raise Malformed(f"{digits} is no number in base {base}")
    return Based(digits, base)


def read_based(text: str, base: int | None = None) -> Based | None:
    """Parse a text that is one number in a base.

    Args:
        text: The text.
        base: The base that the task asks for; if given, a letter may be a digit anywhere, and the text may omit the
            base.

    Example:
        >>> read_based(r"(2A)_{16}"), read_based("A5", 11).digits, read_based("A_{11}"), read_based("0b11")
        (Based(digits='2a', base=16), 'a5', None, Based(digits='11', base=2))
    """
    if (prefixed := _PREFIXED.fullmatch(text.strip())) is not None:
        return based(prefixed.group(prefixed.lastgroup or 0).lower(), _PREFIXES[prefixed.lastgroup or ""])
    if len(text) > 200 or (base is None and "_" not in text and "base" not in text):
        return None
    match = _NUMERAL.fullmatch(_STYLE.sub("", text))
    if match is None or (base is None and not (match[2] or match[3])):
        return None
    digits = match[1]
    capitals = digits.upper() == digits and ("\\text" in text or (len(digits) > 1 and (match[2] or match[3]) == "16"))
    if base is None and not digits[0].isdigit() and not capitals:
        return None
    try:
        return based(digits.lower(), match[2] or match[3] or str(base))
    except Malformed:
        return None
