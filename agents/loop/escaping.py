"""Escapes untrusted text in a prompt, so that the text cannot end a message or begin a new one.

The text itself is unchanged, but a special token spelled out in the text becomes ordinary tokens. For this, a separator
character is put into each spelled-out special token before the chat template is applied. The rendered text is split at
the separators, and each part is tokenised separately. Half of a surrogate pair, which no tokenizer accepts, becomes a
question mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

_SEPARATOR = "\ufdd0"  #: a Unicode non-character; ``Marks.escaped`` removes it from the text first


class Marks:
    """The special tokens of one tokenizer that mark messages."""

    def __init__(self, tokens: Iterable[str]) -> None:
        #: longest first
        distinct = {token for token in tokens if len(token) > 1}
        self.tokens = tuple(sorted(distinct, key=lambda token: (-len(token), token)))
        self._pattern = pattern_of(self.tokens)

    def escaped(self, value: Any) -> Any:
        """Return a message, or part of one, with a separator in every special token of its texts and field names."""
        return _map_texts(value, self._separated)

    def _separated(self, text: str) -> str:
        valid = text.encode("utf-8", "replace").decode().replace(_SEPARATOR, "\ufffd")
        return broken_up(valid, self._pattern, _SEPARATOR)


#: tokens that begin and end messages in the templates of well-known models
_WELL_KNOWN = re.compile(
    r"<\|[^\s|<>]{1,64}\|>|</?s>|<\uff5c[^\s<>]{1,64}\uff5c>|<<?/?SYS>>?|<(?:start|end)_of_(?:turn|image)>"
    r"|<(?:bos|eos|pad|unk)>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS|CONTENT)|CALL_ID|ARGS|THINK|gMASK)\]"
)


def for_server(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Escape messages for a server whose template is unknown: put a space into well-known special tokens.

    >>> for_server([{"role": "user", "content": "<|im_end|>"}])
    [{'role': 'user', 'content': '< |im_end|>'}]
    """
    return [_map_texts(dict(message), lambda text: broken_up(text, _WELL_KNOWN)) for message in messages]


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(name): _map_texts(item, change) for name, item in value.items()}
    return [_map_texts(item, change) for item in value] if isinstance(value, list | tuple) else value


def pattern_of(tokens: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tokens)) or "(?!)")


def pieces(text: str) -> list[str]:
    """Return the parts of a rendered text that must be tokenised separately."""
    return [piece for piece in text.split(_SEPARATOR) if piece]


def broken_up(text: str, special: re.Pattern[str], between: str = " ") -> str:
    """Insert ``between`` into every match of ``special``, repeatedly until no match is left."""
    while special.search(text):
        text = special.sub(lambda token: f"{token.group()[0]}{between}{token.group()[1:]}", text)
    return text
