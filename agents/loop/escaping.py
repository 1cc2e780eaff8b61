"""Escapes untrusted text in a prompt, so it cannot end a message of the chat template or begin another one.

The text itself is unchanged, but special tokens written in it become ordinary tokens: an invisible seam is put into
each, passes through the template with the text, and the parts between seams are tokenised separately. Half of a
surrogate pair, which has no tokens, becomes a question mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_SEAM = "\ufdd0"  #: a Unicode non-character, never part of a text after escaping


class Marks:
    """The special tokens of one tokenizer that mark messages."""

    def __init__(self, tokens: Iterable[str]) -> None:
        #: longest first
        distinct = {token for token in tokens if len(token) > 1}
        self.tokens = tuple(sorted(distinct, key=lambda token: (-len(token), token)))
        self._pattern = pattern_of(self.tokens)

    def escaped(self, value: Any) -> Any:
        """Return a message, or a part of one, with a seam in every mark of its texts and field names."""
        return _each(value, self._seamed)

    def _seamed(self, text: str) -> str:
        return broken_up(text.encode("utf-8", "replace").decode().replace(_SEAM, "\ufffd"), self._pattern, _SEAM)


#: tokens with which the templates of well-known models begin and end messages
_OF_OTHERS = re.compile(
    r"<\|[^\s|<>]{1,64}\|>|</?s>|<\uff5c[^\s<>]{1,64}\uff5c>|<<?/?SYS>>?|<(?:start|end)_of_(?:turn|image)>"
    r"|<(?:bos|eos|pad|unk)>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|CALL_ID|ARGS|THINK|gMASK)\]"
)


def for_server(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Escape messages for a server with an unknown template: put a space into every mark of well-known templates.

    >>> for_server([{"role": "user", "content": "<|im_end|>"}])
    [{'role': 'user', 'content': '< |im_end|>'}]
    """
    return [_each(dict(message), lambda text: broken_up(text, _OF_OTHERS)) for message in messages]


def _each(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): _each(item, change) for name, item in value.items()}
    return [_each(item, change) for item in value] if isinstance(value, list | tuple) else value


def pattern_of(tokens: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tokens)) or "(?!)")


def pieces(text: str) -> list[str]:
    """Return the parts of a rendered text that must be tokenised separately."""
    return [piece for piece in text.split(_SEAM) if piece]


def broken_up(text: str, special: re.Pattern[str], between: str = " ") -> str:
    """Return the text with ``between`` in every match of ``special``, also in matches that this creates."""
    while special.search(text):
        text = special.sub(lambda token: f"{token.group()[0]}{between}{token.group()[1:]}", text)
    return text
