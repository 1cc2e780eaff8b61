"""Texts of others in a prompt: what somebody wrote must not end a message of the template or begin another's.

A text is kept as it is, but the tokens that a template marks messages with are written in it as ordinary ones: an
invisible seam is put into each, goes through the template with the text, and what lies between two seams is
tokenised apart. Half a surrogate, which has no tokens, becomes a question mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_SEAM = "\ufdd0"
"""Not a character, by Unicode, and never one of a text that was marked."""


class Marks:
    """The tokens of one tokenizer that count as marks.

    Args:
        tokens: Their texts; one of a single character cannot be divided, and is left out.
    """

    def __init__(self, tokens: Iterable[str]) -> None:
        self.tokens = tuple(sorted({token for token in tokens if len(token) > 1}, key=lambda one: (-len(one), one)))
        """Their texts, longest first."""
        self._pattern = pattern_of(self.tokens)

    def quoted(self, value: Any) -> Any:
        """A message, or a part of one, with a seam in every mark of its texts, names of its fields included."""
        return _each(value, self._seamed)

    def _seamed(self, text: str) -> str:
        return broken_up(text.encode("utf-8", "replace").decode().replace(_SEAM, "\ufffd"), self._pattern, _SEAM)


_OF_OTHERS = re.compile(
    r"<\|[^\s|<>]{1,64}\|>|</?s>|<\uff5c[^\s<>]{1,64}\uff5c>|<<?/?SYS>>?|<(?:start|end)_of_(?:turn|image)>"
    r"|<(?:bos|eos|pad|unk)>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|CALL_ID|ARGS|THINK|gMASK)\]"
)
"""What the templates of well-known models begin and end messages with."""


def for_server(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages for a server whose template is not known, with a space in every mark of well-known ones.

    >>> for_server([{"role": "user", "content": "<|im_end|>"}])
    [{'role': 'user', 'content': '< |im_end|>'}]
    """
    return [_each(dict(message), lambda text: broken_up(text, _OF_OTHERS)) for message in messages]


def _each(value: Any, change: Callable[[str], str]) -> Any:
    """The same with every text in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): _each(one, change) for name, one in value.items()}
    return [_each(one, change) for one in value] if isinstance(value, list | tuple) else value


def pattern_of(tokens: Iterable[str]) -> re.Pattern[str]:
    """Finds each of ``tokens``, of which the longest come first."""
    return re.compile("|".join(map(re.escape, tokens)) or "(?!)")


def pieces(text: str) -> list[str]:
    """The parts of a rendered text that are to be tokenised apart."""
    return [piece for piece in text.split(_SEAM) if piece]


def broken_up(text: str, special: re.Pattern[str], between: str = " ") -> str:
    """The text with ``between`` in everything that ``special`` finds, also in what that brings together."""
    while special.search(text):
        text = special.sub(lambda token: f"{token.group()[0]}{between}{token.group()[1:]}", text)
    return text
