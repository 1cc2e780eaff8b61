r"""Detection of a boxed answer that the text after the box takes back: ``\boxed{5}. Scratch that, 7.``

``phrases.toml`` has the phrases of six languages. The last sentence that denies or confirms the answer decides.
"""

from __future__ import annotations

import re
import tomllib
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from turntree.rewards.reading.answer import parse_number

_READ = 1500  #: characters after the box, and before the end of the text, that are searched
_SENTENCE = re.compile(
    r"\n|[.!?;](?=\s|$)|(?<=\w),\s(?=and |but |aber |mais |pero |\u043d\u043e )|"
    r"[\u3002\uff01\uff1f\uff1b\uff0c]|\.\.\.|\u2026"
)
_SETTING = re.compile(r"\$|\\[()\[\],;:! ]|\*|\\(?:text(?:bf|it|rm)?|mathrm|mathbf|boxed)(?![a-zA-Z])|[{}`_\"]|\\$")
_NUMBER = r"[-\u2212]?\s?(?:\d[\d,]*(?:\.\d+)?(?:\s?/\s?\d+)?|\.\d+)"
_FRACTION = re.compile(r"([-\u2212]?)\s*\\[dtc]?frac\s*\{\s*([-\u2212]?\d+)\s*\}\s*\{\s*(\d+)\s*\}")
#: the replacing value after a phrase: ``the correct answer is x = 7``
_VALUE = re.compile(
    rf"(?:[\s:=(]|\b[a-z]\s?=|\b(?:is|be|rather|it's|ist|sein|est|es|to|-)\b)*(?P<value>{_NUMBER}|[a-z]\b)"
)


class _Phrases(NamedTuple):
    parts: tuple[str, ...]  #: first words of the phrases, without which a text takes nothing back
    denies: re.Pattern[str]
    after_box: re.Pattern[str]
    alone: re.Pattern[str]
    gives: re.Pattern[str]
    confirms: re.Pattern[str]


@cache
def _phrases() -> _Phrases:
    languages = tomllib.loads((files(__package__) / "phrases.toml").read_text(encoding="utf-8")).values()

    def any_of(name: str) -> str:
        phrases = sorted({phrase for language in languages for phrase in language[name]}, key=len, reverse=True)
        # A word must not begin or end inside a phrase; Chinese is written without spaces.
        return "|".join(
            rf"\b{re.escape(phrase)}(?!\w)" if phrase.isascii() or phrase[0] < "\u2e80" else re.escape(phrase)
            for phrase in phrases
        ).replace(r"\ ", r"\s+")

    phrases = {
        phrase for language in languages for name in ("denies", "after_box", "gives") for phrase in language[name]
    }
    return _Phrases(
        tuple({" ".join(phrase.rstrip(" :").split()[:2]) for phrase in phrases}),
        re.compile(any_of("denies")),
        re.compile(rf"\W*(?:{any_of('after_box')})"),
        re.compile(rf"\W*(?:{any_of('alone')})\s*(?:$|[.!?;\n\u3002\uff01\uff0c])"),
        re.compile(any_of("gives").replace(r":(?!\w)", ":")),
        re.compile(any_of("confirms")),
    )


def is_withdrawn(rest: str, content: str) -> bool:
    """Return whether ``rest``, the text after the last box, takes back the value ``content`` of the box."""
    if not any(map(str.isalpha, rest)):
        return False
    phrases = _phrases()
    text = rest if len(rest) <= 2 * _READ else f"{rest[:_READ]}\n{rest[-_READ:]}"
    text = _SETTING.sub(" ", _FRACTION.sub(r"\1\2/\3", text)).lower().replace("\u2019", "'")
    withdrawn = phrases.alone.match(text) is not None
    spaced = " ".join(text.split())
    # A quick check, as most texts take nothing back.
    if not withdrawn and not any(part in spaced for part in phrases.parts):
        return False
    for number, sentence in enumerate(_SENTENCE.split(text)):
        replaced = [
            differs
            for phrase in phrases.gives.finditer(sentence)
            if (differs := _differs(sentence[phrase.end() :], content)) is not None
        ]
        if replaced:
            withdrawn = replaced[-1]
        elif phrases.denies.search(sentence) or (number == 0 and phrases.after_box.match(sentence)):
            withdrawn = True
        elif phrases.confirms.search(sentence):
            withdrawn = False
    return withdrawn


def _differs(text: str, content: str) -> bool | None:
    # Whether the value at the start of a text differs from the box's value; None if the two cannot be compared.
    match = _VALUE.match(text)
    if match is None:
        return None
    found, own = map(parse_number, (match["value"], _FRACTION.sub(r"\1\2/\3", content)))
    if found is None or own is None:
        letters = re.sub(r"[^a-z]", "", content.lower().replace("\\text", ""))
        return match["value"] != letters if len(letters) == 1 and match["value"].isalpha() else None
    # A rounded value or a percentage is the same value.
    return not any(abs(found - scale * own) * 100 <= abs(scale * own) for scale in (1, 100, Fraction(1, 100)))
