"""Letters of options: ``B``, ``(B)``, ``B. 42``. Naming two options is always wrong."""

from __future__ import annotations

import re
import string

from turntree.rewards.answer_format import AnswerFormat, Kind
from turntree.rewards.formula.plain import commands_stripped
from turntree.rewards.formula.syntax.characters import HALF_OF_DAY
from turntree.rewards.reading import flags
from turntree.rewards.result import Status, Verdict

_LETTER = re.compile(r"\(?\s*([A-Za-z])\s*\)?")
_WITH_TEXT = re.compile(r"(?:\(\s*([A-Za-z])\s*\)|([A-Za-z])\s*[.):])\s*(\S.*)", re.DOTALL)
#: text after an option that offers something else: ``(B), 4``, ``(B) 4 or 5``
_BESIDE = re.compile(r"^[,;/&|+]|^and\b|\([a-z]\)|\b(?:or|not)\b")
_FURTHER_LETTERS = re.compile(r"[a-e](?:[\s.):,;]+[a-e])*[.):]?")
_QUAD = re.compile(r"\\q?quad(?![a-z])|\\\\")
_GAP = re.compile(r"\\(?:\\|(?:newline|q?quad)(?![a-z])|[hv]space\*?\s*\{[^{}]*\}|[,;:!> ])|[~\n]")
_ENCLOSED = re.compile(r"\([^()]*\)")
#: an option letter: with its mark after a line break, a sign or a word; or without a mark between values
_MARKED = re.compile(
    r"\n\s*\(?([A-Za-z])\s*[.):](?=\s*\S)|[^\sA-Za-z]\s*([A-Z])\s*[.):](?=\s*\S)|"
    r"[A-Za-z]\s+([A-Z])[.)](?=\s+\S)|[,;]\s*([A-Z])\s+(?=[\d\\$-])"
)
_WRAPPING = re.compile(r"\\(?:text(?:bf|it|rm)?|math(?:bf|rm)|left|right)(?![a-zA-Z])|\\[,;: {}]|[${}]")
_SEVERAL = re.compile(r"\(?[A-Za-z]\)?(?:\s*(?:,|and|or|/|&|;)?\s*\(?[A-Za-z]\)?)+")
_NAMED = re.compile(r"(?:option|choice|answer|letter)\s+(?:is\s+)?\(?([A-Za-z])\b\)?\.?")
_TEXT_LETTER = re.compile(
    r"\s*\(?(?:\\text(?:bf|it|rm)?\s*\{\s*\(?\s*([A-Z])\s*\)?\s*\}|\(?([A-J])\)?|"
    r"(?<=\()\\math(?:bf|rm)\s*\{\s*([A-Z])\s*\}(?=\)))\)?\s*[.,]?\s*"
)
_LETTERS = re.compile(r"[A-Z](?:\s*(?:,|and|&|\s)\s*(?:and\s+)?[A-Z])+")
_BEFORE_VALUE = re.compile(
    r"\s*(?:\\(?:text(?:bf|it|rm)?|math(?:bf|rm))\s*\{\s*\(?[A-J]\)?[.:]?\s*\}|\([A-J]\)|[A-J][.)])"
    r"[\s:~]*(?:\\[ ,;:])*(?=[^\s,;])"
)


def is_option(gold: str) -> bool:
    r"""Return whether a gold answer of a mixed data set is an option: ``C``, ``(C)``, ``\text{C}``."""
    return _TEXT_LETTER.fullmatch(gold) is not None


def named_letters(text: str) -> tuple[str, ...] | None:
    r"""Return the letters of a list of options: ``\text{A, C}``, ``B and E``; ``None`` for other text."""
    if not any(map(str.isupper, text)):
        return None
    words = _WRAPPING.sub(" ", text).strip(" .")
    return tuple(re.findall(r"\b[A-Z]\b", words)) if _LETTERS.fullmatch(" ".join(words.split())) else None


def same_letters(gold: str, text: str) -> bool | None:
    """Return whether an answer lists the gold answer's options; ``None`` if one of the texts lists no options.

    Order counts only if the gold answer is not in alphabetical order, since such a task asks for an order.
    """
    right = named_letters(gold)
    ours = named_letters(text) if right else None
    joined = _WRAPPING.sub("", text).strip()
    if ours is None and right and joined.isupper() and joined.isalpha() and len(set(joined)) == len(joined):
        ours = tuple(joined)
    if right is None or ours is None:
        return None
    return right == ours or (list(right) == sorted(right) and set(right) == set(ours))


def without_option(text: str) -> str | None:
    r"""Return the value after an option's letter: ``7`` of ``\textbf{(C)}\ 7``; ``None`` without a letter."""
    match = _BEFORE_VALUE.match(text)
    return text[match.end() :] if match is not None else None


def _names_several(text: str, first: str, allowed: str) -> bool:
    apart = _WRAPPING.sub(" ", _GAP.sub("\n", HALF_OF_DAY.sub(r"\1m", text)))
    letters = [next(filter(None, found.groups())).lower() for found in _MARKED.finditer(_ENCLOSED.sub(" ", apart))]
    return any(letter != first and letter in allowed for letter in letters)


def compare_option(gold: str, text: str, answer_format: AnswerFormat) -> Verdict | None:
    """Compare the option letter that a text names with the gold answer.

    Returns:
        ``None`` if the answer is no letter and the data set is not multiple choice.
    """
    right = _LETTER.fullmatch(commands_stripped(gold).rstrip(" ,"))
    answer = commands_stripped(text)
    if right is None:
        return None
    letter = _LETTER.fullmatch(answer) or _NAMED.fullmatch(answer)
    allowed = string.ascii_lowercase[: answer_format.options]
    if letter is not None:
        return Verdict(correct=letter[1] == right[1], method="option")
    labelled = _WITH_TEXT.fullmatch(answer)
    if labelled is not None:
        further = _FURTHER_LETTERS.fullmatch(_QUAD.sub(" ", labelled[3]).strip())
        first = labelled[1] or labelled[2]
        if further or _BESIDE.search(labelled[3]) or _names_several(text, first, allowed):
            return Verdict(correct=False, status=Status.HACK_SUSPECT, flags=(flags.CANDIDATES,))
        return Verdict(correct=first == right[1], method="option")
    letters = re.findall(r"\b[a-z]\b", answer)
    if _SEVERAL.fullmatch(answer) and len(letters) > 1 and all(letter in allowed for letter in letters):
        return Verdict(correct=False, status=Status.HACK_SUSPECT, flags=(flags.CANDIDATES,))
    if answer_format.kind is Kind.OPTION:
        return Verdict(correct=False, method="option")
    return None
