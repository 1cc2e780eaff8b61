"""Where the calls of a turn stand: outside of thoughts, and what is written in a call is part of it alone.

A mark of thoughts within a call that can be read is text. A call that cannot be read, in what turns out to have been
a thought, is none.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from turntree.envs.message import ToolCall
from turntree.envs.parsers.turn import ParsedTurn, unreadable
from turntree.rewards.reading.thoughts import may_think, next_thought, without_thoughts

_MOST_MARKS = 64
"""Marks behind an opening one, and thoughts of a turn, that are looked at: texts may be made to be slow to read."""
_MOST_TRIES = 16
"""Calls that cannot be read, of which each may yet turn out to be a thought."""


class ParsedCall(NamedTuple):
    """What was read behind a mark."""

    calls: tuple[ToolCall, ...]
    end: int
    """Where the text goes on behind them."""


def read_marked(
    text: str,
    opening: re.Pattern[str],
    read: Callable[[str, re.Match[str]], ParsedCall | None],
    example: Callable[[re.Match[str]], str],
) -> ParsedTurn:
    """Read a turn whose calls begin with marks.

    Args:
        read: Reads the calls behind a mark; a ``ValueError`` says why it cannot, ``None`` that the mark is text.
        example: How a call with this mark should look.
    """
    thinks = may_think(text)
    content: list[str] = []
    calls: list[ToolCall] = []
    wrong: ParsedTurn | None = None
    kept = position = tries = 0
    opened = opening.search(text)
    span = next_thought(text) if thinks else None
    while opened is not None or span is not None:
        if span is None or (opened is not None and opened.start() < (span.start if span.opened else span.last)):
            assert opened is not None
            position = opened.end()
            try:
                found = read(text, opened)
            except ValueError as error:
                wrong, tries = wrong or unreadable(text, str(error), example(opened)), tries + 1
                if tries == _MOST_TRIES:
                    break
            else:
                if found is not None:
                    content.append(text[kept : opened.start()])
                    calls += found.calls
                    kept = position = found.end
        else:
            if not span.opened:
                content, calls, wrong, kept = [], [], None, 0
            position = span.end
        if opened is not None and opened.start() < position:
            opened = opening.search(text, position)
        if span is not None and (span.start if span.opened else span.last) < position:
            span = next_thought(text, position)
    return wrong or ParsedTurn(content="".join([*content, text[kept:]]).strip(), calls=tuple(calls))


def call_candidates(text: str) -> Iterator[str]:
    """What a turn may be that is one call: all of it, what stands behind each thought, all but the thoughts."""
    yield text
    if may_think(text):
        position = 0
        for _ in range(_MOST_MARKS):
            if (span := next_thought(text, position)) is None:
                break
            position = span.end
            yield text[position:]
        yield without_thoughts(text)[0]


def end_of_nested(
    text: str, start: int, opening: re.Pattern[str], closing: re.Pattern[str], *, thoughts: bool = True
) -> re.Match[str] | None:
    """The mark that ends what is open at a place, of several that could.

    Pairs of marks between are text, and so is a closing mark that another follows before the next opening one. Where
    openings are written that nothing closes, the first closing mark ends it that no other follows so.

    Args:
        start: Behind the opening mark.
        thoughts: Whether a closing mark behind a thought is not this one's.
    """
    marks = heapq.merge(opening.finditer(text, start), closing.finditer(text, start), key=lambda mark: mark.start())
    depth = 1
    first = latest = found = None
    for mark in itertools.islice(marks, _MOST_MARKS):
        opens = mark.re is opening
        if found is not None and (opens or (thoughts and next_thought(text[found.end() : mark.start()]) is not None)):
            return found
        if opens:
            first, latest, depth = first or latest, None, depth + 1
        else:
            latest, depth = mark, depth - 1
            found = mark if depth <= 0 else None
    return found or first or latest
