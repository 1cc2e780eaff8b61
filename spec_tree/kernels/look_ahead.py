"""Prefetches the memory that the drafts of some rows will read, for all of them at once.

A place in the log is seldom in a cache, and its link, which says where the next
older place is, has to be read first. Row by row, a draft would mostly wait; here
the walks of several rows go on side by side, a link each in turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.candidates import WALK, WINDOW
from turntree.spec_tree.kernels.compiled import index, inlined, int64, part
from turntree.spec_tree.kernels.indexing import head_of, lengthened, mix
from turntree.spec_tree.kernels.instructions import fetch
from turntree.spec_tree.kernels.layout import (
    ENV2,
    ENV4,
    ENV_KEY,
    EXACT1,
    EXACT_KEY,
    GRANULE,
    LINKS,
    TAIL,
    TASK2,
    TASK_KEY,
    TOOLS_KEY,
    TokenLog,
    TurnKeys,
)

TOGETHER = 16
"""Rows whose memory is asked for at once."""
_LINE = 16
"""Numbers of 32 bits in a line of the cache."""
_PLACES = 48
"""Places of a turn that are asked for; few have more."""


@part
def look_ahead(rows: NDArray[np.int64], first: int, live: Any, log: TokenLog, turns: TurnKeys, work: Any) -> None:
    """Find the newest places of ``TOGETHER`` rows, and ask for what ``find_places`` reads from there on.

    Args:
        rows: Of ``live``.
        first: The first; fewer than ``TOGETHER`` may be left.
        live: Of type ``LIVE_TURN``.
        work: A ``SCRATCH``; ``newest_links`` is filled, shape (TOGETHER, LINKS).
    """
    count = min(len(rows) - first, TOGETHER)
    # one stage for all rows after another: what a stage reads has been asked for by the one before
    _ask_turns(rows, first, count, live)
    _heads(rows, first, count, live, log, work)
    _ask_anchors(rows, first, count, live, log)
    _walk_together(count, log, turns, work)


@inlined
def _ask_turns(rows: NDArray[np.int64], first: int, count: int, live: Any) -> None:
    """Ask for what a draft reads and writes of the turns themselves."""
    for b in range(count):
        row = rows[first + b]
        fetch(live[row].keys, int64(0))
        fetch(live[row].tail, int64(TAIL))  # what lies behind it says where its newest token is
    for b in range(count):
        turn = live[rows[first + b]]
        fetch(turn.tail, int64(turn.last))
        fetch(turn.anchors, int64(0))
        fetch(turn.anchors, int64(_LINE))
        for at in range(0, _PLACES, _LINE):
            fetch(turn.places, int64(at))
            fetch(turn.matches, int64(at))
            fetch(turn.kinds, int64(at))


@inlined
def _ask_anchors(rows: NDArray[np.int64], first: int, count: int, live: Any, log: TokenLog) -> None:
    """Ask for what lies around the anchors."""
    for b in range(count):
        turn = live[rows[first + b]]
        for i in range(turn.anchor_count):
            anchor = int64(turn.anchors[i])
            fetch(log.tokens, max(anchor - WINDOW, int64(0)))
            fetch(log.tokens, min(anchor + WINDOW, len(log.tokens) - 1))
            fetch(log.owner, anchor // GRANULE)


@inlined
def _walk_together(count: int, log: TokenLog, turns: TurnKeys, work: Any) -> None:
    """Follow all links of ``count`` rows, a step each in turn; ``newest_links`` holds heads before, places after."""
    at, before, newest = work.at_links, work.before_links, work.newest_links
    for b in range(count):
        for link in range(LINKS):
            head = newest[b, link]
            place = int64(log.heads[link, head]) if head >= 0 else int64(-1)
            newest[b, link], at[b, link], before[b, link] = place, place, -1
            if place >= 0:
                fetch(log.links[link], place)
    for _ in range(WALK):
        for b in range(count):
            for link in range(LINKS):
                place = at[b, link]
                # the owner of a place was asked for a step ago, only now its keys can be
                if before[b, link] >= 0:
                    fetch(turns, int64(log.owner[index(before[b, link] // GRANULE)]))
                before[b, link] = place
                if place >= 0:
                    place = index(place)
                    fetch(log.tokens, place)
                    fetch(log.owner, place // GRANULE)
                    place = int64(log.links[link, place])
                    if place >= 0:
                        fetch(log.links[link], place)
                    at[b, link] = place


@part
def _heads(rows: NDArray[np.int64], first: int, count: int, live: Any, log: TokenLog, work: Any) -> None:
    """Fill ``newest_links`` with where the rows' newest places are named, -1 where a turn has too few tokens."""
    newest = work.newest_links
    for b in range(count):
        turn = live[rows[first + b]]
        keys, tail, last = turn.keys, turn.tail, int64(turn.last)
        token = tail[last]
        middle, wide = mix(keys[TOOLS_KEY], token), mix(keys[ENV_KEY], token)
        newest[b, ENV4] = -1
        if token >= 0:
            one = tail[last - 1]
            middle, wide = mix(mix(keys[TASK_KEY], token), one), mix(wide, one)
            if one >= 0:
                two = tail[last - 2]
                three = tail[last - 3] if two >= 0 else np.int32(-1)
                newest[b, ENV4] = head_of(lengthened(wide, two, three), log.heads[ENV4])
        newest[b, EXACT1] = head_of(mix(keys[EXACT_KEY], token), log.heads[EXACT1])
        newest[b, TASK2], newest[b, ENV2] = head_of(middle, log.heads[TASK2]), head_of(wide, log.heads[ENV2])
        for link in range(LINKS):
            if newest[b, link] >= 0:
                fetch(log.heads[link], newest[b, link])
