"""The part of a text that counts: thoughts and comments taken out.

Invariant: one pass over the text; what is left is a subsequence of it.
"""

from __future__ import annotations

import re

_THINK = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)


def without_thoughts(text: str) -> tuple[str, str]:
    """Part a text into what is said and what is thought.

    A thought that is never closed goes to the end; one that is never opened (chat templates open it in
    the prompt) begins with the text.

    Args:
        text: The policy's own text.

    Returns:
        What is said, and what is thought.

    Example:
        >>> without_thoughts("<think>a</think>b")
        ('b', 'a')
    """
    said: list[str] = []
    thought: list[str] = []
    position, inside = 0, False
    for mark in _THINK.finditer(text):
        part = text[position : mark.start()]
        position = mark.end()
        if mark[1] and not inside:
            thought += said
            said = []
            thought.append(part)
        else:
            (thought if inside else said).append(part)
        inside = not mark[1]
    (thought if inside else said).append(text[position:])
    return "".join(said), "".join(thought)


def without_comments(text: str) -> str:
    """The text without HTML comments; one that is never closed goes to the end."""
    kept, position = [], 0
    while (start := text.find("<!--", position)) >= 0:
        kept.append(text[position:start])
        end = text.find("-->", start)
        if end < 0:
            return "".join(kept)
        position = end + 3
    return "".join(kept) + text[position:]


def is_commented(text: str, start: int) -> bool:
    """Whether a LaTeX comment sign stands before a place on its line; percentages are no comments."""
    line_start = max(text.rfind("\n", 0, start) + 1, start - 2_000)
    line = text[line_start:start]
    sign = line.find("%")
    while sign >= 0:
        before = line[:sign].rstrip()
        if not before or before[-1] in "})]$.":
            return True
        sign = line.find("%", sign + 1)
    return False
