"""Find the calls of a turn. Calls inside thoughts do not count; thought marks inside a readable call are text."""

from __future__ import annotations

import heapq
import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from turntree.envs.message import ToolCall
from turntree.envs.parsers.turn import ParsedTurn, unreadable
from turntree.rewards.reading.thoughts import Span, may_think, next_thought, without_thoughts

#: Marks after an opening one, and thoughts of a turn, that are examined; bounds the time for adversarial texts.
_MAX_MARKS = 64
_MAX_FAILURES = 16  #: unreadable calls, each of which may turn out to be part of a thought


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
    content: list[str] = []
    calls: list[ToolCall] = []
    error: ParsedTurn | None = None
    kept = position = failures = 0  # text before ``kept`` is already in ``content``
    mark = opening.search(text)
    thought = next_thought(text) if may_think(text) else None
    # Marks and thoughts are handled in the order of the text. Whichever comes first hides those inside it.
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
            # A closing mark without an opening one: everything before it was a thought, including its calls and errors.
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
    # The whole turn, the text after each thought, and the turn without its thoughts.
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

    Nested pairs of marks are text. A closing mark directly followed by another one is text, too. If some opening marks
    are never closed, use the first closing mark that no other follows before the next opening one.

    Args:
        start: Index after the opening mark.
        thoughts: Whether a closing mark after a thought belongs to something else.
    """
    marks = heapq.merge(opening.finditer(text, start), closing.finditer(text, start), key=lambda mark: mark.start())
    depth = 1
    # end: closes depth 1. latest: last closing mark of the current run of closing marks. first: end of the first run.
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
