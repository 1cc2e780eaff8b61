r"""The boxes of a text: ``\boxed{}``, ``\fbox{}``, ``\framebox{}``."""

from __future__ import annotations

import re
from typing import NamedTuple

from turntree.rewards.limits import MAX_ANSWER
from turntree.rewards.reading import flags
from turntree.rewards.reading.around_box import (
    BESIDE,
    NO_VALUE,
    SIGNS,
    after_box,
    enclosing_formula,
    joined,
    relation_follows,
)
from turntree.rewards.reading.thoughts import may_think
from turntree.rewards.reading.visible import HIDING
from turntree.rewards.reading.withdrawn import is_withdrawn
from turntree.rewards.result import Status

_BOX = re.compile(r"\\(?:d?boxed|fbox|framebox|ovalbox)(?![a-zA-Z])\s*(?:\[[^\]\n]{0,20}\]\s*)*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BARE = re.compile(r"-?\d+(?:\.\d+)?|[A-Za-z]\b|\\[A-Za-z]+")
_BETWEEN = re.compile(
    r"(?:\s|[,;.$&~(]|\\[()\[\],;:! ]|\\q?quad|\\\\|"
    r"(?P<either>\b(?:and|or|and/or|either/or|else|or else|otherwise|maybe|perhaps|or maybe|or perhaps|possibly|"
    r"alternatively|also|as well as|plus|if not|versus|vs|resp|oder|ou|o|y|und|et)\b|"
    r"[/|\u2228\u6216\u548c]|\\(?:lor|vee|land|wedge)\b|"
    r"\\(?:text|mathrm|textrm|emph|textit|textbf)\s*\{\s*,?\s*(?:and|or)\s*,?\s*\})|"
    r"\\(?:text|mathrm|textrm)\s*\{[\s,]*\})*"
)
_NEGATED_BEFORE = re.compile(
    r"(?:\bnot|n't|\bnever|\bnor|\\neq?|\\not|\u2260)(?:\s|\\?[$(\[{]|\\text|\bequal(?: to)?|\bbe\b|[:*])*$",
    re.IGNORECASE,
)
_NEGATED_AFTER = re.compile(
    r"(?:[\s.,$*)\]]|\\[)\]])*(?:is|was|would be|isn't|wasn't)?\s*"
    r"(?:\bnot (?:the|correct|right|it)\b|\bisn't\b|\b(?:is|was) (?:wrong|incorrect|false|not)\b)",
    re.IGNORECASE,
)
#: a negated property at the end of a text, with no other value after it: ``is not on the line``.
_PROPERTY = re.compile(
    r"\W{0,9}(?:is|was) not (?:on|inside|between|collinear|parallel|prime|divisible by \d+|"
    rf"an? (?:(?:multiple|factor|divisor) of \d+|power|prime|square|perfect))\b{NO_VALUE}{{0,80}}\W{{0,9}}",
    re.IGNORECASE,
)
#: a redefinition of the box command, which then prints something else
REDEFINED = re.compile(
    r"\\(?:let|[gex]?def|(?:re)?newcommand\*?|DeclareRobustCommand)\s*\{?\s*\\(?:d?boxed|fbox)(?![a-zA-Z])"
)
_AROUND = " \n.$~"
_MAY_BELONG = BESIDE | {" "}
_LOOK_BACK = 64
_GAP = 60


class Boxes(NamedTuple):
    """The last box of a text and the boxes directly before it."""

    contents: tuple[str, ...]  #: contents in order; the last is the answer
    alternatives: tuple[str, ...] = ()  #: values that an "or" offers besides the answer
    status: Status = Status.OK  #: why the last box cannot be compared, else ok
    flags: tuple[str, ...] = ()


class _Box(NamedTuple):
    start: int
    end: int
    content: str


def lone_number(text: str) -> str | None:
    # A fast path for the common case: one box that holds only a number, and nothing else to check.
    start = text.find("\\boxed{")
    if start < 0 or "<" in text or "%" in text or text.count("box") != 1 or "~~" in text or "]:" in text:
        return None
    end = text.find("}", start)
    number = text[start + 7 : end]
    if not (number.isdecimal() and number.isascii() and len(number) < 40) or may_think(text):
        return None
    before = text[max(0, start - 60) : start].lower()
    if text.count("\\") > 1:  # with other commands than the box, parts of the text may be hidden
        if "\\if" in text or "\\begin" in text or "def\\" in text or "command" in text or "let\\" in text:
            return None
        if "\\" in before and "\\" in before.replace("\\[", "").replace("\\(", ""):
            return None
        if start > 60 and HIDING.search(text, 0, start):
            return None
    denied = "no" in before and ("not" in before or "nor" in before)
    if denied or "n't" in before or "never" in before or "\u2260" in before:
        return None
    if (before[-1:] in _MAY_BELONG and (before[-1] != " " or before.rstrip()[-1:] in SIGNS)) or before[-1:].isalpha():
        return None
    rest = text[end + 1 :]
    if rest != "." and rest.strip(" .$)]\\\n*"):
        return None
    return number


def find_boxes(text: str) -> Boxes | None:
    """Return the last visible box and the boxes directly before it; ``None`` if the text has no box.

    Args:
        text: A text without thoughts and without hidden text.
    """
    if "box" not in text:
        return None
    starts = [match for match in _BOX.finditer(text)]
    while starts:
        content = _content(text, starts[-1])
        if content is None:
            starts.pop()
        else:
            break
    if not starts:
        return None
    # Bound the time for texts that consist of boxes.
    starts = starts[-_LOOK_BACK:]
    last = _content(text, starts.pop())
    assert last is not None
    if isinstance(last, Status):
        return Boxes((), (), last, (flags.HUGE,) if last is Status.REJECTED_LIMITS else ())
    row, either, both = [last], False, ""
    while starts:
        before = _content(text, starts.pop())
        if not isinstance(before, _Box):
            break
        # Of nested boxes, the outer box counts, unless it holds nothing but the inner box.
        if before.end >= row[0].end:
            row[0] = before._replace(content=row[0].content) if _fills(before, row[0]) else before
            continue
        if row[0].start - before.end > _GAP:
            break
        between = _BETWEEN.fullmatch(text, before.end, row[0].start)
        if between is None:
            sign = joined(text, before.end, row[0].start)
            if sign and len(row) == 1 and not relation_follows(text, row[0].end):
                both = f"({before.content}) {sign} ({row[0].content})"
            break
        either |= bool(between["either"])
        row.insert(0, before)
    last = row[-1]
    if not last.content.strip():
        return Boxes((), (), Status.NO_ANSWER, (flags.PLACEHOLDER,))
    if _is_denied(text, last):
        return Boxes((), (), Status.HACK_SUSPECT, (flags.NEGATION,))
    contents = tuple(box.content.strip() for box in row)
    beside = (contents[:-1] if either else ()) + ((both,) if both else ())
    if (formula := enclosing_formula(text, last.start, last.end, contents[-1])) is None:
        return Boxes(contents, beside + after_box(text, last.start, last.end, contents[-1]))
    if formula == f"-({contents[-1]})":
        return Boxes((*contents[:-1], formula), beside)
    return Boxes(contents, (*beside, formula))


def _is_denied(text: str, box: _Box) -> bool:
    if _NEGATED_BEFORE.search(text[max(0, box.start - 30) : box.start]):
        return True
    denied = _NEGATED_AFTER.match(text[box.end : box.end + 40]) or is_withdrawn(text[box.end :], box.content)
    return bool(denied) and not _PROPERTY.fullmatch(text, box.end)


def _fills(outer: _Box, inner: _Box) -> bool:
    return len(outer.content.strip(_AROUND)) == inner.end - inner.start


def _content(text: str, match: re.Match[str]) -> _Box | Status | None:
    start = match.end()
    if start >= len(text) or text[start] != "{":
        bare = _BARE.match(text, start)
        return _Box(match.start(), bare.end(), bare[0]) if bare else None
    # Bound the search: many boxes that never close would each be searched to the end of the text.
    depth, stop = 0, start + MAX_ANSWER
    for brace in _BRACE.finditer(text, start, min(stop, len(text))):
        if brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth -= 1
            if depth == 0:
                return _Box(match.start(), brace.end(), text[start + 1 : brace.start()])
    return Status.REJECTED_LIMITS if stop < len(text) else Status.NO_ANSWER
