"""Texts without insignificant characters, for comparison as strings."""

from __future__ import annotations

import re

_STYLE = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|limits|[bB]igg?[lr]?)(?![a-zA-Z])|\\(?:text(?:bf|it|rm|normal|sf)?|mathrm|mathbf|"
    r"mbox|operatorname)(?![a-zA-Z])|\\[,!;: ]|\\q?quad(?![a-zA-Z])|(?<!\\)[${}~\s]|\\[()]|\\ "
)
HALF_OF_DAY = re.compile(r"\b([ap])\.\s?m\b\.?", re.IGNORECASE)
_COMMAND = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|sf)?|mathrm|mathbf|mathit|mbox|operatorname|boxed)\s*(?![a-zA-Z])|\\[,!;:()\[\]]|[${}~]"
)


def plain(text: str) -> str:
    r"""A text without styling, spaces and grouping where they cannot change a value.

    Example:
        >>> plain(r"\text{Odd}") == plain("odd")
        True
    """
    text = HALF_OF_DAY.sub(r"\1m", text)
    if re.fullmatch(r"[^\\^_]*", text := text.strip().rstrip(".")) or "\\text" in text:
        words = _STYLE.sub("", text).strip().rstrip(".")
        if re.fullmatch(r"[A-Za-z' -]+", words):
            return words.lower() if len(words) > 1 else words
    return re.sub(
        r"\\[dt]frac", r"\\frac", " ".join(re.sub(r"\\(?:left|right)(?![a-zA-Z])|\\[,!;: ]", " ", text).split())
    )


def commands_stripped(text: str) -> str:
    """A text in lower case without styling, its words kept apart."""
    return " ".join(_COMMAND.sub(" ", HALF_OF_DAY.sub(r"\1m", text)).split()).strip(" .").lower()
