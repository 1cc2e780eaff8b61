r"""Text before a box that belongs to the box's value: a sign, a factor, a root around the box.

A box that fills in a blank stays as it is: in an equation with a known left side, ``7 = 3 + \boxed{4}``, or in an
expression with variables, ``(x-2)(x-\boxed{3})``.
"""

from __future__ import annotations

import re

from turntree.rewards.reading.after_box import RELATION

_OPERATED = re.compile(
    r"(?:(?:[-+/^\u2212\u00b1\u00d7\u00b7\u00f7]|(?<=[\d)}])\s?\*|\\(?:cdot|times|div|pm|mp)(?![a-zA-Z]))\s*|"
    r"(?<=\d)$|\\(?:ln|lg|log|exp|sin|cos|tan)(?:_(?:\{\w{1,9}\}|\w))?\s*|"
    r"\\(?:[dtc]?frac|sqrt(?:\[[^\]]{0,9}\])?)\s*(?:\{[^{}$]{0,60}\}\s*)?\{\s*|\^\{\s*|(?:\\left\s*)?\(\s*)+$"
)
_CUT = re.compile(
    r"\$|\\[(\[]|\n|[.;:!?,]\s|\\(?:text|mathrm|mathbf|textbf)\s*\{[^{}]*\}|\\q?quad|&|\\\\|"
    r"\\[a-zA-Z]*arrow|(?<![\\a-zA-Z])[a-zA-Z]{2,}(?![a-zA-Z])[\s*]+|"
    rf"{RELATION}|\\(?:to|implies|therefore|so)(?![a-zA-Z])"
)
_RELATION = re.compile(RELATION)
_END = re.compile(r"\$|\\[)\]]|\n|[;:!?,]\s|\.(?:\s|$)|\\(?:text|mathrm)\s*\{|&|\\\\|\s[a-zA-Z]{2,}")
_CLOSED = re.compile(r"[\s.]*(?:\$|\\[)\]]|$)")
_BULLET = re.compile(r"(?:^|\n)\s*[-+*\u2212]\s+$")
#: A letter directly before a box that only a number and a relation precede.
_FACTOR = re.compile(
    r"(?:^|[$=({[]\s*)(\d*(?:[A-Za-z]|\\(?:pi|theta|alpha|beta|gamma|lambda|mu|phi|omega|rho|sigma|tau|epsilon|delta)))$"
)
_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-df-hj-zA-Z]")
_SEEN, _FAR = 100, 400
#: Last characters, across a blank, of text that may belong to a box.
SIGNS = frozenset("-+*/^{(\u2212\u00b1\u00d7\u00b7\u00f7")
BESIDE = SIGNS | frozenset("0123456789")  #: Last characters of such text directly before a box.
_ENDS = BESIDE | frozenset("tsvmpngx}")  #: ``BESIDE`` with the last characters of commands.


def enclosing_formula(text: str, start: int, end: int, content: str) -> str | None:
    r"""Return the formula of which a box is an operand, with the content in place of the box.

    Args:
        text: The text.
        start: Index of the box.
        end: Index after the box.
        content: Content of the box.

    Returns:
        The formula; ``None`` if the box stands alone.

    Example:
        >>> texts = [(before, rf"$x={before}\boxed{{7}}$") for before in ("", "-", "2+")]
        >>> [enclosing_formula(text, 3 + len(before), 12 + len(before), "7") for before, text in texts]
        [None, '-(7)', '2+(7)']
    """
    before = text[max(0, start - _SEEN) : start]
    if before[-1:].isalpha() and (letter := _FACTOR.search(before)) is not None:
        alone = _CLOSED.match(text, end) and _in_formula(text[max(0, start - _FAR) : start])
        return f"{letter[1]}\\cdot({content})" if alone else None
    if before.rstrip()[-1:] not in _ENDS or _OPERATED.search(before) is None or _BULLET.search(before):
        return None
    if (before[-1].isspace() or before[-1].isalnum()) and not _in_formula(text[max(0, start - _FAR) : start]):
        return None
    cut = max((match.end() for match in _CUT.finditer(before)), default=0)
    tail, stated = before[cut:].lstrip(), before[max(before.rfind("$", 0, cut), before.rfind("\n", 0, cut)) + 1 : cut]
    if not tail.strip("({ ") or _LETTER.search(tail):
        return None
    rest = text[end : end + _SEEN]
    if (stop := _END.search(rest)) is not None:
        rest = rest[: stop.start()]
    # With a known left side or a relation after the box, the box fills in a blank.
    blank = _RELATION.search(rest) or (_RELATION.search(stated) and not _LETTER.search(stated))
    return None if blank else f"{tail}({content}){rest}".strip()


def _in_formula(before: str) -> bool:
    dollars = before.replace("\\$", "").replace("$$", "$").count("$")
    opened, closed = (max(before.rfind(one), before.rfind(other)) for one, other in (("\\(", "\\["), ("\\)", "\\]")))
    return dollars % 2 == 1 or opened > closed
