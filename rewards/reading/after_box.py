r"""Text after an answer that belongs to it: another value, or the rest of a formula.

A formula that continues with a relation has a blank to fill in, ``3 + \boxed{4} = 7``. Words after an answer, its
unit among them, change nothing.
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
#: Words after which no value follows.
NO_VALUE = rf"(?:(?!\b(?:{_NUMERALS}|none|undefined|infinit\w*|[b-z])\b)[a-z ,'-])"
#: A hypothetical clause at the end of a text: ``or else $J$ would have more factors``.
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
#: The sign of a relation, as a pattern.
RELATION = r"(?:[=<>\u2248\u2264\u2265]|\\(?:approx|leq?|geq?|equiv)(?![a-zA-Z]))"
_RELATION = re.compile(r"[\s})]*" + RELATION)
_SETTING = re.compile(r"\$|\\[()\]]|\*\*|\\(?:text(?:bf|it|rm)?|mathrm)\s*\{(?P<words>[^{}]*)\}")
_SEEN = 120


def offered_value(text: str, end: int) -> tuple[str, ...]:
    """Return the value that an "or" offers directly after a position, if there is one."""
    beside = _OR.match(text, end, end + _SEEN)
    if beside is None or ("." in text[end : beside.start("word")] and not _SENTENCE.match(text, beside.end())):
        return ()
    return () if _CLAUSE.fullmatch(text, beside.start("word")) else (beside["formula"] or beside["value"],)


def joined(text: str, end: int, start: int) -> str:
    """Return the operation that joins two boxes into one formula; empty if there is none."""
    sign = _JOINED.fullmatch(text, end, start)
    return "" if sign is None else "/" if sign["sign"].startswith("}") else sign["sign"]


def relation_follows(text: str, end: int) -> bool:
    """Return whether a relation follows, which means that the text before it is no result."""
    return _RELATION.match(text, end) is not None


def after_box(text: str, start: int, end: int, content: str) -> tuple[str, ...]:
    r"""Return the values that a text gives beside or in place of a box; all of them must be right.

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
    # The formula continues right after the box, as in "\boxed{7}\pi".
    if _BESIDE.fullmatch(rest):
        return (f"{content}{rest}",)
    rest = rest.strip()
    formula = _CLOSING.split(text[end : end + _SEEN], maxsplit=1)[0].strip()
    if formula == "!" and text[end : end + _SEEN].lstrip()[1:2] in ("$", "\\"):
        return (f"({content})!",)
    # The line may go on with words after the formula, so both ends are tried.
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
