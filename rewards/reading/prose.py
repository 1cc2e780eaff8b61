"""Answers in plain text: tags, ``#### x``, "the answer is x", the last number or formula.

Invariant: every search is linear in the text, and its result is a substring of the text.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from turntree.rewards.limits import MAX_ANSWER
from turntree.rewards.reading.answer import final_answer

_TAG = "<answer>"
_ANCHOR = re.compile(
    r"\b(?:answer|result)\b(?:\s*\([^()\n]{0,40}\))?(?:\s+(?:to|of|for)\s[^.\n]{0,60}?)?[ \t]*\**\s?"
    r"(?:\b(?:is|are|was|equals|would be|should be|must be)\b|isn't|=|:)\s*[:*]*[ \t]*",
    re.IGNORECASE,
)
_HEADING = re.compile(r"\s*(?:step|final|answer|solution|conclusion|part|case|summary)\b", re.IGNORECASE)
_END = re.compile(r"\n|[.!?](?=\s|$|\*)|;\s|,?\s+(?:because|since|which|so that|as required|where|I hope)\b")
_NEGATED = re.compile(r"\s*(?:definitely |certainly |clearly )?(?:not\b|never\b|n't\b|anything but\b)", re.IGNORECASE)
_FORMULA = re.compile(r"\$\$?([^$]{1,400}?)\$\$?|\\\((.{1,400}?)\\\)|\\\[(.{1,400}?)\\\]", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])-?\s?\\?\$?(?:\d[\d,]*\d|\d)(?:\.\d+)?(?:\s?/\s?\d+)?\s?\\?%?")
_LIST = re.compile(r"(?:-?\d+[\s,;]+){5,}-?\d+\s*\.?\s*$")
_OPTION = re.compile(r"\(([A-Z])\)|\b([B-HJ-Z]|A(?!\s+[a-z]))\b(?!')")
_TAIL = 1_500


class Anchored(NamedTuple):
    """The text after "the answer is"."""

    phrase: str
    """The rest of the sentence."""
    negated: bool
    """Whether it states what the answer is not."""


class Tail(NamedTuple):
    """The end of a text."""

    phrase: str | None
    """The last number or formula."""
    is_list: bool
    """Whether the text ends in a bare list of numbers, none of them singled out."""


def from_tag(text: str) -> str | None:
    """The contents of the last ``<answer>`` tag; a tag that is never closed extends to the end."""
    start = text.rfind(_TAG)
    if start < 0:
        return None
    end = text.find("</answer>", start)
    content = text[start + len(_TAG) : end if end >= 0 else len(text)].strip()
    return content[: MAX_ANSWER + 1] or None


def from_mark(text: str) -> str | None:
    """The text after the last ``####`` on its line, except headings."""
    answer = final_answer(text) if "####" in text else None
    return answer[: MAX_ANSWER + 1] if answer and not _HEADING.match(answer) else None


def from_anchor(text: str) -> Anchored | None:
    """The text after the last "answer is", to the end of its sentence."""
    match = None
    if "nswer" in text or "esult" in text or "NSWER" in text:
        for found in _ANCHOR.finditer(text):
            match = found
    if match is None:
        return None
    rest = text[match.end() : match.end() + MAX_ANSWER].lstrip(" \t\r\n*:")
    for opening, closing in (("\\[", "\\]"), ("$$", "$$"), ("\\(", "\\)"), ("$", "$")):
        if rest.startswith(opening) and (end := rest.find(closing, len(opening))) > 0:
            after = _END.search(rest, end + len(closing))
            return Anchored(rest[: after.start() if after else len(rest)].strip(" *"), False)
    negated = bool(_NEGATED.match(rest)) or match[0].lower().find("isn't") >= 0
    end_match = _END.search(rest)
    phrase = rest[: end_match.start() if end_match else len(rest)].strip(" *,")
    return Anchored(phrase, negated)


def from_tail(text: str) -> Tail:
    """The last number or formula of a text."""
    tail = text[-_TAIL:]
    if _LIST.search(tail[-400:]):
        return Tail(None, True)
    place, phrase = -1, None
    for match in _FORMULA.finditer(tail):
        place, phrase = match.end(), match[1] or match[2] or match[3]
    for match in _NUMBER.finditer(tail, max(place, 0)):
        phrase = match[0]
    return Tail(phrase.strip() if phrase else None, False)


def last_option(text: str) -> str | None:
    """The last letter of an option in a text; articles and pronouns do not count."""
    letter = None
    for match in _OPTION.finditer(text[-_TAIL:]):
        letter = match[1] or match[2]
    return letter
