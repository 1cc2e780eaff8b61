"""Search for answers in plain text: tags, ``#### x``, "the answer is x", the last number or formula."""

from __future__ import annotations

import re
from typing import NamedTuple

from turntree.rewards.limits import MAX_ANSWER
from turntree.rewards.reading import flags
from turntree.rewards.reading.answer import final_answer
from turntree.rewards.reading.around_box import offered_value
from turntree.rewards.reading.scales import SCALES

_TAG = "<answer>"
_ANCHOR = re.compile(
    r"\b(?:answer|result)\b(?:\s*\([^()\n]{0,40}\))?(?:\s+(?:to|of|for)\s[^.\n]{0,60}?)?[ \t]*\**\s?"
    r"(?:\b(?:is|are|was|equals|would be|should be|must be)\b|isn't|=|:|"
    r"\s?[\u2013\u2014-](?=[ \t]+[-$\\(*]*(?:\d|[A-Z]\b)))\s*[:*]*[ \t]*|"
    r"(?:\u7b54\u6848|\u7ed3\u679c|\u7d50\u679c|\u7b54\u3048?)(?:\u4e0d|\u5e76\u4e0d|\u5e76\u975e|\u7edd\u4e0d|)(?:\u662f|\u4e3a|\u70ba|\u7b49\u4e8e|\u306f|[:\uff1a])+\s*|"
    r"(?:\uc815\ub2f5|\ub2f5|\uacb0\uacfc)(?:\uc740|\ub294|\uc774|[:\uff1a])+\s*|"
    r"\b(?:\u043e\u0442\u0432\u0435\u0442|respuesta|r\u00e9ponse|antwort|risposta|resposta|l\u00f6sung|soluci\u00f3n)\b"
    r"(?:\s+(?:es|est|ist|lautet|\u00e8|\u00e9|\u2014)(?!\w)|\s*[:=])+\s*",
    re.IGNORECASE,
)
_RESULT = re.compile(r"result|\u7ed3\u679c|\u7d50\u679c|\uacb0\uacfc", re.IGNORECASE)
_ANCHORS = ("nswer", "esult", "NSWER", "ESULT", "espuesta", "ntwort", "isposta", "esposta")
_HEADING = re.compile(r"\s*(?:step|final|answer|solution|conclusion|part|case|summary)\b", re.IGNORECASE)
_END = re.compile(
    r"\n|\uff0c(?=[\u5171\u4e00\u5373\u5176\u56e0\u6240\u8fd9])|"
    r"(?<!\bi\.e)(?<!\be\.g)(?<!\.\.)(?:[.?]|!(?!\s*=))(?=\s|$|\*)|;\s|\u3002|"
    r",?\s+(?:because|since|which|so that|as required|where|"
    r"I hope)\b|"
    r",?\s+(?:(?:and|but) not|not|rather than|instead of)\s+(?=[-$\\(*]{0,3}(?:\d|[A-Z]\b))"
)
_BULLET = re.compile(r"[-*\u2022\u2013]\s+(?=\S)")
_THAT_IS = re.compile(r"\W*\b(?:i\.\s?e\.|that is(?: to say)?,|in other words)\W*?(?=[-$\\]?\w|[$\\(-])")
_ASIDE = re.compile(r"(?<=[\w$)}%*])\s+\(([^()\n]{3,120})\)$")
_CHANGING = re.compile(
    r"\b(?:mod|modulo|base|or|else|otherwise|maybe|perhaps|not|if|in|times|e?x?10|more|less|than)\b|[-+*/^=<>]",
    re.IGNORECASE,
)
_NEGATED = re.compile(r"\s*(?:definitely |certainly |clearly )?(?:not\b|never\b|n't\b|anything but\b)", re.IGNORECASE)
_DENIED = re.compile("isn't|[\u4e0d\u975e]", re.IGNORECASE)
_FORMULA = re.compile(r"\$\$?([^$]{1,400}?)\$\$?|\\\((.{1,400}?)\\\)|\\\[(.{1,400}?)\\\]", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![A-Za-z0-9_.])(?:-(?!\s)|(?<!^)(?<!\n)-\s)?\\?\$?"
    r"(?:\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})+(?!\d)|\d[\d,]*\d|\d)(?:\.\d+)?(?:\s?/\s?\d+|(?::\d+)+)?\s?\\?%?"
)
_LIST = re.compile(r"(?:-?\d+[\s,;]+){5,}-?\d+\s*\.?\s*$")
_OPTION = re.compile(r"\(([A-Z])\)|\b([B-HJ-Z]|A(?!\s+(?!(?:or|and|is|as|because|since)\b)[a-z]))\b(?!')", re.ASCII)
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)|\n")
_REASON = re.compile(r"(?:,?\s+|^)(?:as|because|since)\b|(?<=\w)\s+\((?![A-Z]\))", re.IGNORECASE)
#: a correction, which cancels the options named before
_CORRECTED = re.compile(
    r"\bbut\s+(?:option\s+)?\(?([A-Z])\)?\s+is\s+(?:right|correct|the\s+(?:(?:right|correct)\s+)?(?:answer|one|option))\s*$"
)
#: a clause that names wrong options
_RULED_OUT = re.compile(
    r"(?:,?\s*(?:as|because|since|for|while|and)\s+|[,;:(]\s*|\.\s+)(?:options?\s+|choices?\s+)?"
    r"\(?[A-Z]\)?(?:(?:\s*,?\s*(?:and|or|&)\s*|\s*,\s*)\(?[A-Z]\)?){0,8}\s+(?:is|are|was|were|can|must)\s+(?:all\s+|both\s+|clearly\s+)?"
    r"(?:wrong|incorrect|false|not\s+(?:correct|right|true)|be\s+(?:ruled\s+out|eliminated|excluded)|ruled\s+out|eliminated|excluded)\b\)?|"
    r"(?:\b[Nn](?:ot|ever|either)|n't|\b[Cc]annot)\s+(?:be\s+)?(?:options?\s+|choices?\s+)?\(?[A-Z]\)?(?![\w'])"
    r"(?:\s+n?or\s+\(?[A-Z]\)?(?!\w))*"
)
_LOWER_OPTION = re.compile(r"\s*\(?([a-z])\)?\s*\.?\s*")
_TAIL = 1_500


class Anchored(NamedTuple):
    """The text after "the answer is"."""

    phrase: str  #: the rest of the sentence
    negated: bool  #: whether the sentence says that the value is not the answer
    beside: tuple[str, ...] = ()  #: other values, or other forms of the value, in the sentence
    of_a_step: bool = False  #: whether the sentence says "result", which may mean the result of an intermediate step


class Tail(NamedTuple):
    """The end of a text."""

    phrase: str | None  #: the last number or formula
    is_list: bool  #: whether the text ends in a list of numbers without choosing one


def from_tag(text: str) -> str | None:
    # An answer tag that is never closed extends to the end of the text.
    start = text.rfind(_TAG)
    if start < 0:
        return None
    end = text.find("</answer>", start)
    content = text[start + len(_TAG) : end if end >= 0 else len(text)].strip()
    return content[: MAX_ANSWER + 1] or None


def from_mark(text: str) -> str | None:
    answer = final_answer(text) if "####" in text else None
    return answer[: MAX_ANSWER + 1] if answer and not _HEADING.match(answer) else None


def from_anchor(text: str) -> Anchored | None:
    match = None
    if any(part in text for part in _ANCHORS) or not text.isascii():
        for found in _ANCHOR.finditer(text):
            match = found
    if match is None:
        return None
    after = text[match.end() : match.end() + MAX_ANSWER]
    rest = after.lstrip(" \t\r\n*:")
    if "\n" in after[: len(after) - len(rest)] or match[0].endswith("\n"):
        rest = _BULLET.sub("", rest, count=1) if _BULLET.match(rest) else rest
    start, negated = 0, _DENIED.search(match[0]) is not None
    # A formula may contain characters that end a sentence, so search for the end of the sentence after the formula.
    for opening, closing in (("\\[", "\\]"), ("$$", "$$"), ("\\(", "\\)"), ("$", "$")):
        if rest.startswith(opening) and (end := rest.find(closing, len(opening))) > 0:
            start = end + len(closing)
            break
    else:
        negated = negated or bool(_NEGATED.match(rest))
    stop = _END.search(rest, start)
    end = len(rest) if stop is None else stop.end() if stop[0] == "?" else stop.start()
    phrase = rest[:end].strip(" *,")
    beside = offered_value(rest, end)
    if not start:
        if (aside := _ASIDE.search(phrase)) and not _changes(aside[1]):
            phrase = phrase[: aside.start()]
        *others, phrase = _THAT_IS.split(phrase)
        beside += tuple(other for other in others if other.strip())
        phrase = phrase[2:-2] if len(phrase) > 4 and phrase[:2] == phrase[-2:] == "__" else phrase
    return Anchored(phrase, negated, beside, of_a_step=bool(_RESULT.match(match[0])))


def _changes(words: str) -> bool:
    known = flags.HEDGING_WORDS | flags.NEGATIVE_WORDS | SCALES.keys()
    return bool(_CHANGING.search(words)) or any(word in known for word in words.lower().split())


def from_tail(text: str) -> Tail:
    tail = text[-_TAIL:]
    # A bare list of numbers names candidates, not an answer.
    if _LIST.search(tail[-400:]):
        return Tail(None, True)
    index, phrase = -1, None
    for match in _FORMULA.finditer(tail):
        index, phrase = match.end(), match[1] or match[2] or match[3]
    for match in _NUMBER.finditer(tail, max(index, 0)):
        phrase = match[0]
    return Tail(phrase.strip() if phrase else None, False)


def last_options(text: str) -> set[str]:
    """Return the letters of options in the last sentence that names any.

    Letters in articles, pronouns and reasons do not count. Consecutive lines or sentences of one letter are one list.

    Example:
        >>> last_options("A is too small. It must be B, as C and D are wrong.")
        {'B'}
    """
    if (alone := _LOWER_OPTION.fullmatch(text)) is not None:
        return {alone[1].upper()}
    letters: set[str] = set()
    for sentence in reversed(_SENTENCE_END.split(_RULED_OUT.sub(" ", text[-_TAIL:]))):
        if not any(map(str.isalpha, sentence)):
            continue
        named = {match[1] or match[2] for match in _OPTION.finditer(_REASON.split(sentence)[0])}
        if (corrected := _CORRECTED.search(sentence)) is not None:
            named = {corrected[1]}
        bare = len(sentence.strip(" ()*.,;:?$-")) == 1
        if letters and not (named and bare):
            break
        letters |= named
        if named and not bare:
            break
    return letters
