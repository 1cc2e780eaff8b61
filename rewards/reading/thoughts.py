"""Thoughts: how models write them, and a text without them, for rewards and for calls of tools alike.

A thought that is never closed extends to the end. A mark that ends one which nothing began makes all before it a
thought: chat templates open thoughts in the prompt. Where a template is known to do so (``ChatTemplate.opens``), what
it opens stands in front of the turn's text.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Thought(NamedTuple):
    """How a family of models writes its thoughts."""

    begin: str
    """Text with which one begins."""
    end: str
    """Text with which one ends."""
    closing: str
    """What closes one from outside, so that the answer follows."""

    def is_open(self, text: str) -> bool:
        """Whether a text ends within a thought."""
        return text.rfind(self.begin) > text.rfind(self.end)


THOUGHTS = (
    Thought("<think>", "</think>", "\n</think>\n\n"),
    Thought("[THINK]", "[/THINK]", "[/THINK]"),
    Thought("<|channel|>analysis", "<|end|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
    Thought("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),
    Thought("<seed:think>", "</seed:think>", "</seed:think>"),
    Thought("\u25c1think\u25b7", "\u25c1/think\u25b7", "\u25c1/think\u25b7"),
)
"""Those that are known: Qwen, DeepSeek and most others, Mistral, gpt-oss, Cohere, ByteDance, Kimi."""
_ENDS_OTHERS = "<|end|>"
"""An end that other things have too: alone, it ends no thought."""


_TAGS = r"\s*(?:think(?:ing)?|thoughts?|reasoning|scratchpad)\s*>"


def _pattern(text: str) -> str:
    return re.sub(r"(</?)think>$", lambda tag: tag[1] + _TAGS, re.escape(text))


_ENDS = tuple(re.compile(_pattern(one.end), re.IGNORECASE) for one in THOUGHTS)
_MARK = re.compile(
    "|".join([f"({_pattern(one.begin)})" for one in THOUGHTS])
    + "".join(f"|{_pattern(one.end)}" for one in THOUGHTS if one.end != _ENDS_OTHERS),
    re.IGNORECASE,
)


class Span(NamedTuple):
    """Where a thought stands in a text."""

    start: int
    """Its first mark; where the search began if nothing opened it."""
    inner: int
    """Where its own words begin."""
    last: int
    """Where they end."""
    end: int
    """Behind its last mark."""
    opened: bool
    """Whether the text opens it."""


def may_think(text: str) -> bool:
    """Whether a text may have a thought; quick."""
    low = text.lower()
    return "think" in low or ("<" in low and any(word in low for word in ("thought", "reason", "scratch", "<|channel")))


def next_thought(text: str, start: int = 0) -> Span | None:
    """The first thought behind a place; one that nothing opened begins there."""
    mark = _MARK.search(text, start)
    if mark is None:
        return None
    if mark.lastindex is None:
        return Span(start, start, mark.start(), mark.end(), False)
    end = _ENDS[mark.lastindex - 1].search(text, mark.end())
    last, behind = end.span() if end else (len(text), len(text))
    return Span(mark.start(), mark.end(), last, behind, True)


def without_thoughts(text: str) -> tuple[str, str]:
    """Split a text into its visible part and its thoughts.

    Returns:
        The visible text, and the thoughts.

    Example:
        >>> without_thoughts("<think>a</think>b")
        ('b', 'a')
    """
    said: list[str] = []
    thought: list[str] = []
    position = 0
    while (span := next_thought(text, position)) is not None:
        if span.opened:
            said.append(text[position : span.start])
        else:
            thought += said
            said = []
        thought.append(_MARK.sub("", text[span.inner : span.last]))
        position = span.end
    said.append(text[position:])
    return "".join(said), "".join(thought)
