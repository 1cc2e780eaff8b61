r"""Detection of text around a box (``\boxed{}``) that belongs to the box's value.

Such text is a sign, a factor or a root before the box, and another value or the rest of a formula after the box. A box
that fills in a blank keeps its own value: ``3 + \boxed{4} = 7``, ``(x-2)(x-\boxed{3})``. Words after an answer are
ignored.
"""

from __future__ import annotations

import re

_NUMERALS = (
    "(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|"
    "eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand|million|half)"
)
_VALUE = (
    r"(?:[(|*]|\\left)*"
    r"(?:(?:\$|\\\(|\\\[)(?P<formula>[^$]{1,80}?)(?:\$|\\\)|\\\])|(?:[$]|\\boxed\s*\{)?(?P<plain>[a-z]\s?=\s?)?"
    r"(?P<value>(?:[-\u2212\u00b1]|\\pm\b)?\s?(?:\d[\d,]*(?:\.\d+)?(?:/\d+)?|\.\d+|"
    r"[\u2070-\u2079\u00b2\u00b3\u00b9]?[\u221a-\u221c\u03c0\u221e\u00bc-\u00be\u2150-\u215e]\s?\d*|"
    r"(?:[a-z\u03b1-\u03c9]|none|undefined|infinity)(?=\W*(?:$|\n))|"
    r"\\d?frac\s*\{[^{}]{1,40}\}\s*\{[^{}]{1,40}\}|\\(?:sqrt|pi|infty)(?:\s*\{[^{}]{1,40}\})?)|(?:"
    + _NUMERALS
    + r")\b))"
)
_CLOSED = r"(?:[\s$*)\]]|\\[)\]])*"
_OR = re.compile(
    r"(?:[\s,;$*(.]|\\[)\],;: ]|\\q?quad|\\(?:text[a-z]*|mathrm|mbox)\s*\{)*\b"
    r"(?P<word>(?:and/)?or|else|otherwise|alternatively|if not|maybe|perhaps|possibly)\b"
    r"(?:[\s,/}]|\\[,;: ]|\\q?quad|"
    r"(?:maybe|perhaps|possibly|else|otherwise|alternatively|it is|it's|it could be|even|just|simply)\b)*" + _VALUE,
    re.IGNORECASE,
)
_AND = re.compile(_CLOSED + r"(?:[,;&]\s*(?:and\s+)?|(?:and|as well as)\s+)(?:also\s+)?" + _VALUE, re.IGNORECASE)
_SENTENCE = re.compile(r"\W*(?:$|\n)")
#: text of words that contains no value
NO_VALUE = rf"(?:(?!\b(?:{_NUMERALS}|none|undefined|infinit\w*|[b-z])\b)[a-z ,'-])"
#: a hypothetical clause at the end of a text: ``or else $J$ would have more factors``.
_CLAUSE = re.compile(
    r"(?:or )?(?:else|otherwise|if not),? \$?[a-z]\$? (?:would|could|must|will|has|have|had|is|are)\b"
    rf"(?:more than \d+|{NO_VALUE}){{0,80}}[).]{{0,2}}\s{{0,9}}",
    re.IGNORECASE,
)
_STOP = re.compile(r"[\s$)\]*\\}]*(?:$|\n|[.;](?:\s|$))")
_LINE_END = re.compile(r"\n|(?<!\\)[.?!;,](?:\s|$)")
_SIGNS = (
    r"[\d.()\[\]{}+\-*/^!\s\u2070-\u2079\u00b2\u00b3\u00b9\u221a-\u221c\u03c0\u2212\u00d7\u00b7\u00f7\u00b1]|"
    r"\\(?:[dt]?frac|sqrt|pi|cdot|times|div|pm|binom|left|right|infty|[,;:! ])(?![a-z])"
)
_FORMULA = rf"(?:{_SIGNS}|(?<![a-zA-Z\\])[a-zA-Z](?![a-zA-Z]))+"
_GOES_ON = re.compile(
    rf"(?P<sign>[-+*/^:\u2212\u00d7\u00b7\u00f7\u00b1]|\\(?:cdot|times|div|pm)(?![a-z])|\b(?:plus|minus|times|to)\b|"
    rf"\bdivided by\b)(?=[^a-z]*(?:[\d\\]|[iknxyz](?![a-z]))){_FORMULA}"
)
_BESIDE = re.compile(
    rf"\\(?:pi|sqrt|[dt]?frac)(?![a-z])(?:{_FORMULA})?|[\u221a\u03c0](?:{_FORMULA})?|[inxyz](?:[\d^+\-*/](?:{_FORMULA})?)?|"
    r"\d+|\.\d+|(?:,|\{,\}|\\[,!]\s*)\d{3}|_(?:\w|\{\w{1,20}\})|[eE][-+]?\d+|\s\d+/\d+|\s*\\[dt]?frac\{\d+\}\{\d+\}|"
    r"\s+(?:dozen|score|hundred|thousand|million|billion|trillion|squared|cubed)"
)
_SLASHED = re.compile(r"\s?/\s?\d+(?![\d/])(?!.*[=<>])")
_EQUAL = re.compile(rf"\s*=\s*(?P<value>(?:{_SIGNS})+)")
_OPERATION = re.compile(r"(?:[-+*/^=<>\u2212\u00d7\u00b7\u00f7]|\\(?:cdot|times|div))[\s{(]*$")
_JOINED = re.compile(_CLOSED + r"(?P<sign>[-+*/\u2212\u00d7\u00b7\u00f7]|\\(?:cdot|times|div)(?![a-z])|\}\s*\{)[\s$(]*")
_WORDS = {"plus": "+", "minus": "-", "times": r"\cdot", "divided by": "/", "to": ":"}
_CLOSING = re.compile(r"\$|\\[)\]]")
_PERCENT = re.compile(r"\\?%\s*")
#: pattern of a relation sign
RELATION = r"(?:[=<>\u2248\u2264\u2265]|\\(?:approx|leq?|geq?|equiv)(?![a-zA-Z]))"
_RELATION = re.compile(r"[\s})]*" + RELATION)
_SETTING = re.compile(r"\$|\\[()\]]|\*\*|\\(?:text(?:bf|it|rm)?|mathrm)\s*\{(?P<words>[^{}]*)\}")
_SEEN = 120


def offered_value(text: str, end: int) -> tuple[str, ...]:
    """Return the value that an "or" offers directly after a position, as a tuple of at most one."""
    beside = _OR.match(text, end, end + _SEEN)
    if beside is None or ("." in text[end : beside.start("word")] and not _SENTENCE.match(text, beside.end())):
        return ()
    return () if _CLAUSE.fullmatch(text, beside.start("word")) else (beside["formula"] or beside["value"],)


def joined(text: str, end: int, start: int) -> str:
    """Return the operation that joins two boxes into one formula; empty if there is none."""
    sign = _JOINED.fullmatch(text, end, start)
    return "" if sign is None else "/" if sign["sign"].startswith("}") else sign["sign"]


def relation_follows(text: str, end: int) -> bool:
    """Return whether a relation sign follows; if so, the text before the sign is not the result."""
    return _RELATION.match(text, end) is not None


def after_box(text: str, start: int, end: int, content: str) -> tuple[str, ...]:
    r"""Return the values that a text gives in addition to a box or instead of it; all must be right.

    Args:
        text: The text.
        start: Index of the box.
        end: Index after the box.
        content: Content of the box.

    Example:
        >>> [after_box(rf"\boxed{{7}}{rest}", 0, 9, "7") for rest in (" / 8", " and 8.", " cm.")]
        [('(7) / 8',), ('8',), ()]
    """
    if either := offered_value(text, end):
        return either
    second = _AND.match(text, end, end + _SEEN)
    if second is not None and _STOP.match(text, second.end()):
        return (second["formula"] or second["value"],)
    rest = _SETTING.sub(r"\g<words>", _LINE_END.split(text[end : end + _SEEN], maxsplit=1)[0]).rstrip(" *\\")
    if equal := _EQUAL.fullmatch(rest):
        return () if _OPERATION.search(text[max(0, start - 20) : start]) else (equal["value"],)
    # The formula continues directly after the box, as in "\boxed{7}\pi".
    if _BESIDE.fullmatch(rest):
        return (f"{content}{rest}",)
    rest = rest.strip()
    formula = _CLOSING.split(text[end : end + _SEEN], maxsplit=1)[0].strip()
    if formula == "!" and text[end : end + _SEEN].lstrip()[1:2] in ("$", "\\"):
        return (f"({content})!",)
    # Words may follow the formula on the line, so try the whole rest of the line and the formula alone.
    for part in (rest, formula):
        percent = _PERCENT.match(part)
        part = part[percent.end() :] if percent else part
        if (more := _GOES_ON.fullmatch(part)) is not None:
            sign = more["sign"]
            value = content + (r"\%" if percent else "")
            return (f"({value}) {_WORDS.get(sign, sign)}{part[len(sign) :]}",)
    if (slashed := _SLASHED.match(rest)) is not None:
        return (f"({content}){slashed[0]}",)
    return ()


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
_ANY_RELATION = re.compile(RELATION)
_END = re.compile(r"\$|\\[)\]]|\n|[;:!?,]\s|\.(?:\s|$)|\\(?:text|mathrm)\s*\{|&|\\\\|\s[a-zA-Z]{2,}")
_FORMULA_CLOSED = re.compile(r"[\s.]*(?:\$|\\[)\]]|$)")
_BULLET = re.compile(r"(?:^|\n)\s*[-+*\u2212]\s+$")
#: a letter directly before a box, with only a number and a relation sign before the letter
_FACTOR = re.compile(
    r"(?:^|[$=({[]\s*)(\d*(?:[A-Za-z]|\\(?:pi|theta|alpha|beta|gamma|lambda|mu|phi|omega|rho|sigma|tau|epsilon|delta)))$"
)
_LETTER = re.compile(r"(?<![\\a-zA-Z])[a-df-hj-zA-Z]")
_SEEN_BEFORE, _FAR = 100, 400
#: text before a box may belong to the box if it ends with one of these characters, even with a blank between
SIGNS = frozenset("-+*/^{(\u2212\u00b1\u00d7\u00b7\u00f7")
BESIDE = SIGNS | frozenset("0123456789")  #: like ``SIGNS``, but without a blank between
_ENDS = BESIDE | frozenset("tsvmpngx}")  #: ``BESIDE`` and the last characters of commands


def enclosing_formula(text: str, start: int, end: int, content: str) -> str | None:
    r"""Return the formula of which a box is an operand, with the box replaced by its content.

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
    before = text[max(0, start - _SEEN_BEFORE) : start]
    if before[-1:].isalpha() and (letter := _FACTOR.search(before)) is not None:
        alone = _FORMULA_CLOSED.match(text, end) and _in_formula(text[max(0, start - _FAR) : start])
        return f"{letter[1]}\\cdot({content})" if alone else None
    if before.rstrip()[-1:] not in _ENDS or _OPERATED.search(before) is None or _BULLET.search(before):
        return None
    if (before[-1].isspace() or before[-1].isalnum()) and not _in_formula(text[max(0, start - _FAR) : start]):
        return None
    cut = max((match.end() for match in _CUT.finditer(before)), default=0)
    tail, stated = before[cut:].lstrip(), before[max(before.rfind("$", 0, cut), before.rfind("\n", 0, cut)) + 1 : cut]
    if not tail.strip("({ ") or _LETTER.search(tail):
        return None
    rest = text[end : end + _SEEN_BEFORE]
    if (stop := _END.search(rest)) is not None:
        rest = rest[: stop.start()]
    # If a relation sign follows the box, or the left side has no letter, the box fills in a blank.
    blank = _ANY_RELATION.search(rest) or (_ANY_RELATION.search(stated) and not _LETTER.search(stated))
    return None if blank else f"{tail}({content}){rest}".strip()


def _in_formula(before: str) -> bool:
    dollars = before.replace("\\$", "").replace("$$", "$").count("$")
    opened, closed = (max(before.rfind(one), before.rfind(other)) for one, other in (("\\(", "\\["), ("\\)", "\\]")))
    return dollars % 2 == 1 or opened > closed
