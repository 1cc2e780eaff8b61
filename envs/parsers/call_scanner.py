"""Find the calls of a turn. A mark is a text that begins or ends a call, such as ``<tool_call>``.

Calls inside thoughts do not count. Marks of thoughts (``<think>``) inside a readable call are part of the call's text.
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from turntree.envs.message import ToolCall
from turntree.envs.parsers.turn import ParsedTurn, unreadable
from turntree.rewards.reading.thoughts import Span, may_think, next_thought, without_thoughts

#: Maximum number of marks examined after an opening mark, and of thoughts in a turn; bounds the time for hostile texts
_MAX_MARKS = 64
_MAX_FAILURES = 16  #: unreadable calls before giving up; several are read, because some may lie inside a thought


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
        opening: Matches a mark that begins a call.
        read: Reads the calls after a mark. It raises ``ValueError`` with the reason if they are malformed, and returns
            ``None`` if the mark is ordinary text.
        example: Returns what a call with this mark should look like, for the error message.
    """
    content: list[str] = []
    calls: list[ToolCall] = []
    error: ParsedTurn | None = None
    kept = position = failures = 0  # text before ``kept`` is already in ``content``
    mark = opening.search(text)
    thought = next_thought(text) if may_think(text) else None
    # Handle marks and thoughts in text order. A thought hides the marks inside it, and a call the thoughts inside it.
    while mark is not None or thought is not None:
        if thought is None or (mark is not None and mark.start() < _position(thought)):
            assert mark is not None
            position = mark.end()
            try:
                parsed = read(text, mark)
            except ValueError as problem:
                error, failures = error or unreadable(text, str(problem), example(mark)), failures + 1
                if failures == _MAX_FAILURES:
                    break
            else:
                if parsed is not None:
                    content.append(text[kept : mark.start()])
                    calls += parsed.calls
                    kept = position = parsed.end
        else:
            # </think> without <think>: everything before it was a thought, so drop the calls and errors found there.
            if not thought.opened:
                content, calls, error, kept = [], [], None, 0
            position = thought.end
        if mark is not None and mark.start() < position:
            mark = opening.search(text, position)
        if thought is not None and _position(thought) < position:
            thought = next_thought(text, position)
    return error or ParsedTurn(content="".join([*content, text[kept:]]).strip(), calls=tuple(calls))


def _position(thought: Span) -> int:
    return thought.start if thought.opened else thought.last


def call_candidates(text: str) -> Iterator[str]:
    # Texts that may consist of calls: the whole turn, the text after each thought, and the turn without its thoughts.
    yield text
    if may_think(text):
        position = 0
        for _ in range(_MAX_MARKS):
            if (span := next_thought(text, position)) is None:
                break
            position = span.end
            yield text[position:]
        yield without_thoughts(text)[0]


def end_of_nested(
    text: str, start: int, opening: re.Pattern[str], closing: re.Pattern[str], *, thoughts: bool = True
) -> re.Match[str] | None:
    """Find the closing mark that belongs to an opening mark, among several candidates.

    Pairs of marks between the two are text of the call. If closing marks follow each other, the last of them closes the
    call. If an opening mark is never closed, return the last mark of the first series of closing marks.

    Args:
        start: Index after the opening mark.
        thoughts: Whether a closing mark after a thought belongs to a later call.
    """
    marks = heapq.merge(opening.finditer(text, start), closing.finditer(text, start), key=lambda mark: mark.start())
    depth = 1
    # A run is a series of closing marks without an opening mark between them. end: closing mark of depth 1; latest:
    # last closing mark of the current run; first: last closing mark of the first run.
    first = latest = end = None
    for mark in itertools.islice(marks, _MAX_MARKS):
        opens = mark.re is opening
        if end is not None and (opens or (thoughts and next_thought(text[end.end() : mark.start()]) is not None)):
            return end
        if opens:
            first, latest, depth = first or latest, None, depth + 1
        else:
            latest, depth = mark, depth - 1
            end = mark if depth <= 0 else None
    return end or first or latest
