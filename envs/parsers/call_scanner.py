"""Find the calls of a turn. Calls inside thoughts do not count; thought marks inside a readable call are text."""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from turntree.envs.message import ToolCall
from turntree.envs.parsers.turn import ParsedTurn, unreadable
from turntree.rewards.reading.thoughts import may_think, next_thought, without_thoughts

#: Marks after an opening one, and thoughts of a turn, that are examined; bounds the time for adversarial texts.
_MOST_MARKS = 64
_MOST_TRIES = 16  #: unreadable calls, each of which may turn out to be part of a thought


class ParsedCall(NamedTuple):
    calls: tuple[ToolCall, ...]
    end: int  #: index after the calls


def read_marked(
    text: str,
    opening: re.Pattern[str],
    read: Callable[[str, re.Match[str]], ParsedCall | None],
    example: Callable[[re.Match[str]], str],
) -> ParsedTurn:
    """Read a turn whose calls begin with marks.

    Args:
        read: Reads the calls after a mark. A ``ValueError`` gives the reason why it cannot; ``None`` means that the
            mark is text.
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
    # The whole turn, the text after each thought, and the turn without its thoughts.
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
    """Find the closing mark that belongs to an opening mark, among several candidates.

    Nested pairs of marks are text. A closing mark directly followed by another one is text, too. If some opening marks
    are never closed, use the first closing mark that no other follows before the next opening one.

    Args:
        start: Index after the opening mark.
        thoughts: Whether a closing mark after a thought belongs to something else.
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
