"""Removal of insignificant characters, for comparison of texts as strings."""

from __future__ import annotations

import re

from turntree.rewards.formula.syntax.characters import HALF_OF_DAY

_STYLE = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|[bB]igg?[lr]?)(?![a-zA-Z])|\\(?:text(?:bf|it|rm|normal|sf)?|mathrm|mathbf|"
    r"mbox|operatorname)(?![a-zA-Z])|\\[,!;: ]|\\q?quad(?![a-zA-Z])|(?<!\\)[${}~\s]|\\[()]|\\ "
)
_STOP = re.compile(r"(?<!\.)\.$")
_ENDING = frozenset(" ~.,;:!d\\")  #: characters that may be dropped at the end of an answer
_COMMAND = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|sf)?|mathrm|mathbf|mathit|mbox|operatorname|boxed)\s*(?![a-zA-Z])|\\[,!;:()\[\]]|[${}~]"
)


_LEADING = re.compile(r"(?:\s|~|\\(?:displaystyle|textstyle|q?quad)(?![a-zA-Z])|\\[,!;: ])+")
_TRAILING = re.compile(r"(?:\s|~|\\(?:q?quad)(?![a-zA-Z])|\\[,!;: ]|(?<![.\\])\.(?=\s*$)|(?<!\\)\\(?=$))+$")
_MATH = re.compile(r"\$([^$]*)\$|\$\$([^$]*)\$\$|\\\(((?:(?!\\[()]).)*)\\\)|\\\[((?:(?!\\[\[\]]).)*)\\\]", re.DOTALL)
_SIZED = re.compile(r"\\(?:left|right|[bB]igg?[lrm]?)\s*(?=[()\[\]])")
#: letters in upright type that are words or a unit
_ROMAN = re.compile(r"(?:(\\circ|\\mu)\s*)?\\mathrm\s*\{(?(1)(?=\w\})|(?=[ (]|[^{}]{2}))")
_SPACES = re.compile(r"(?:(?<!\\)~|[\n\t\u00a0])+")
_BOX_OF_TEXT = re.compile(r"\\[mh]box\s*\{")
_COLON = re.compile(r"(?:\\!)*\\colon(?![a-zA-Z]) ?(?:\\!)*|\{:\}")
_BAR = re.compile(r"\\mid(?![a-zA-Z]) ?")
#: invisible TeX braces around text that is no list
_BRACED = re.compile(r"\{(?!.*\\(?:over|choose|atop)(?![a-z]))((?:[^{},]|\{(?:[^{},]|\{[^{},]*\})*\})*)\}")


def bared(text: str) -> str:
    r"""Strip an answer of typesetting: spacing, a final full stop, dollar signs, bracket sizes.

    Words in upright letters are text.

    Example:
        >>> bared(r"\displaystyle \left(1, 2\right)\,."), bared("$5$"), bared("0.3...")
        ('(1, 2)', '5', '0.3...')
    """
    text = " ".join(_SPACES.split(text)).strip()
    if "\\left" in text or "\\right" in text or "\\big" in text or "\\Big" in text:
        text = _SIZED.sub("", text)
    if "\\mathrm" in text:
        text = _ROMAN.sub(lambda match: (match[1] or "") + r"\text{", text)
    if "\\mbox" in text or "\\colon" in text:
        text = _COLON.sub(":", _BOX_OF_TEXT.sub(r"\\text{", text))
    if text.count("\\mid") % 2 == 0 and "\\mid" in text:  # a single \mid is a divider, not a pair of bars
        text = _BAR.sub("|", text)
    while True:
        inner = text
        if (leading := _LEADING.match(inner)) is not None:
            inner = inner[leading.end() :]
        if inner[-1:] in _ENDING:
            inner = _TRAILING.sub("", inner)
        if inner[:1] in ("$", "\\") and (signs := _MATH.fullmatch(inner)) is not None:
            inner = next(filter(None, signs.groups()), "")
        if inner[:1] == "{" and (braced := _BRACED.fullmatch(inner)) is not None:
            inner = braced[1]
        if inner == text:
            return text
        text = inner


def plain(text: str) -> str:
    r"""Remove styling, spaces and digit grouping where they cannot change a value.

    Example:
        >>> plain(r"\text{Odd}") == plain("odd")
        True
    """
    text = HALF_OF_DAY.sub(r"\1m", text)
    if re.fullmatch(r"[^\\^_]*", text := _STOP.sub("", text.strip())) or "\\text" in text:
        words = _STOP.sub("", _STYLE.sub("", text).strip())
        if re.fullmatch(r"[A-Za-z' -]+", words):
            return words.lower() if len(words) > 1 else words
    return re.sub(
        r"\\[dt]frac", r"\\frac", " ".join(re.sub(r"\\(?:left|right)(?![a-zA-Z])|\\[,!;: ]", " ", text).split())
    )


def commands_stripped(text: str) -> str:
    return " ".join(_COMMAND.sub(" ", HALF_OF_DAY.sub(r"\1m", text)).split()).strip(" .").lower()
