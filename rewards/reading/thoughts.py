"""Thoughts of reasoning models, and text without them, for rewards and for parsers of tool calls.

A thought that is never closed extends to the end. An end mark without a begin mark makes all text before it a
thought, because chat templates open thoughts in the prompt.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Thought(NamedTuple):
    """The marks by which a family of models delimits thoughts."""

    begin: str
    end: str
    closing: str  #: text that closes a thought from outside, so that the answer follows

    def is_open(self, text: str) -> bool:
        return text.rfind(self.begin) > text.rfind(self.end)


#: Qwen, DeepSeek and most other families; Mistral; gpt-oss; Cohere; ByteDance; Kimi.
THOUGHTS = (
    Thought("<think>", "</think>", "\n</think>\n\n"),
    Thought("[THINK]", "[/THINK]", "[/THINK]"),
    Thought("<|channel|>analysis", "<|end|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    Thought("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),
    Thought("<seed:think>", "</seed:think>", "</seed:think>"),
    Thought("\u25c1think\u25b7", "\u25c1/think\u25b7", "\u25c1/think\u25b7"),
)
_ENDS_OTHERS = "<|end|>"  #: gpt-oss ends every message with this mark, so alone it ends no thought.


_TAGS = r"\s*(?:think(?:ing)?|thoughts?|reasoning|scratchpad)\s*>"


def _pattern(text: str) -> str:
    return re.sub(r"(</?)think>$", lambda tag: tag[1] + _TAGS, re.escape(text))


_ENDS = tuple(re.compile(_pattern(marks.end), re.IGNORECASE) for marks in THOUGHTS)
_MARK = re.compile(
    "|".join([f"({_pattern(marks.begin)})" for marks in THOUGHTS])
    + "".join(f"|{_pattern(marks.end)}" for marks in THOUGHTS if marks.end != _ENDS_OTHERS),
    re.IGNORECASE,
)


class Span(NamedTuple):
    """The position of a thought in a text, as indices."""

    start: int  #: of the begin mark; where the search started if there is no begin mark
    inner: int  #: of the thought's first character
    last: int  #: after the thought's last character
    end: int  #: after the end mark
    opened: bool  #: whether the text has the begin mark


def may_think(text: str) -> bool:
    # A cheap test that spares most texts the regular expressions.
    low = text.lower()
    return "think" in low or ("<" in low and any(word in low for word in ("thought", "reason", "scratch", "<|channel")))


def next_thought(text: str, start: int = 0) -> Span | None:
    """Return the first thought after an index."""
    mark = _MARK.search(text, start)
    if mark is None:
        return None
    if mark.lastindex is None:
        return Span(start, start, mark.start(), mark.end(), False)
    end = _ENDS[mark.lastindex - 1].search(text, mark.end())
    last, after = end.span() if end else (len(text), len(text))
    return Span(mark.start(), mark.end(), last, after, True)


def without_thoughts(text: str) -> tuple[str, str]:
    """Split a text into its visible part and its thoughts.

    Example:
        >>> without_thoughts("<think>a</think>b")
        ('b', 'a')
    """
    visible: list[str] = []
    thought: list[str] = []
    position = 0
    while (span := next_thought(text, position)) is not None:
        if span.opened:
            visible.append(text[position : span.start])
        else:
            thought += visible
            visible = []
        thought.append(_MARK.sub("", text[span.inner : span.last]))
        position = span.end
    visible.append(text[position:])
    return "".join(visible), "".join(thought)
