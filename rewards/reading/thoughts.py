"""Thoughts of reasoning models, and text without them, for rewards and for parsers of tool calls.

A thought that is never closed extends to the end of the text. If an end mark has no begin mark, all text before the end
mark is a thought, because chat templates may put the begin mark into the prompt.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Thought(NamedTuple):
    """The marks by which a family of models delimits thoughts."""

    begin: str
    end: str
    closing: str  #: text to append in order to end an open thought, so that the answer comes next

    def is_open(self, text: str) -> bool:
        return text.rfind(self.begin) > text.rfind(self.end)


#: marks of Qwen, DeepSeek and most other families; Mistral; gpt-oss; Cohere; ByteDance; Kimi
THOUGHTS = (
    Thought("<think>", "</think>", "\n</think>\n\n"),
    Thought("[THINK]", "[/THINK]", "[/THINK]"),
    Thought("<|channel|>analysis", "<|end|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    Thought("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),
    Thought("<seed:think>", "</seed:think>", "</seed:think>"),
    Thought("\u25c1think\u25b7", "\u25c1/think\u25b7", "\u25c1/think\u25b7"),
)
_ENDS_OTHERS = "<|end|>"  #: gpt-oss ends all messages with this mark, so it is no sign of a thought by itself


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
    """The position of a thought in a text; all numbers are indices into the text."""

    start: int  #: start of the begin mark, or of the search if there is no begin mark
    inner: int  #: first character of the thought
    last: int  #: end of the thought, exclusive
    end: int  #: end of the end mark, exclusive
    opened: bool  #: whether the text has the begin mark


def may_think(text: str) -> bool:
    # A cheap test, so that most texts skip the regular expressions.
    low = text.lower()
    return "think" in low or ("<" in low and any(word in low for word in ("thought", "reason", "scratch", "<|channel")))


def next_thought(text: str, start: int = 0) -> Span | None:
    """Return the first thought from index ``start`` on."""
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
