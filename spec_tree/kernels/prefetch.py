"""Prefetch the memory that the drafts of several rows will read.

A candidate (a position in a stored turn) is rarely in a cache, and only its link leads to the next older candidate.
Drafting row by row would mostly wait for memory. So several rows are walked together, one link per row and round.
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

PREFETCHED_ROWS = 16  #: rows that are prefetched together
_LINE = 16  #: 32-bit numbers per cache line
_CANDIDATES = 48  #: candidates of a turn that are prefetched; few turns have more


@part
def prefetch_rows(rows: NDArray[np.int64], first: int, live: Any, log: TokenLog, turns: TurnKeys, work: Any) -> None:
    """Look up the newest links of the next ``PREFETCHED_ROWS`` rows and prefetch what ``find_candidates`` reads."""
    count = min(len(rows) - first, PREFETCHED_ROWS)
    # Each stage handles all rows and reads memory that the stage before has prefetched.
    _fetch_turns(rows, first, count, live)
    _fetch_heads(rows, first, count, live, log, work)
    _fetch_anchors(rows, first, count, live, log)
    _walk_together(count, log, turns, work)


@inlined
def _fetch_turns(rows: NDArray[np.int64], first: int, count: int, live: Any) -> None:
    for b in range(count):
        row = rows[first + b]
        fetch(live[row].keys, int64(0))
        fetch(live[row].tail, int64(TAIL))  # the field after ``tail``: ``last``, read in the next loop
    for b in range(count):
        turn = live[rows[first + b]]
        fetch(turn.tail, int64(turn.last))
        fetch(turn.anchors, int64(0))
        fetch(turn.anchors, int64(_LINE))
        for at in range(0, _CANDIDATES, _LINE):
            fetch(turn.candidates, int64(at))
            fetch(turn.matches, int64(at))
            fetch(turn.kinds, int64(at))


@inlined
def _fetch_anchors(rows: NDArray[np.int64], first: int, count: int, live: Any, log: TokenLog) -> None:
    for b in range(count):
        turn = live[rows[first + b]]
        for i in range(turn.anchor_count):
            anchor = int64(turn.anchors[i])
            fetch(log.tokens, max(anchor - WINDOW, int64(0)))
            fetch(log.tokens, min(anchor + WINDOW, len(log.tokens) - 1))
            fetch(log.owner, anchor // GRANULE)


@inlined
def _walk_together(count: int, log: TokenLog, turns: TurnKeys, work: Any) -> None:
    # ``newest_links`` holds hashes of heads on entry, and the newest positions on return.
    at, before, newest = work.at_links, work.before_links, work.newest_links
    for b in range(count):
        for link in range(LINKS):
            head = newest[b, link]
            position = int64(log.heads[link, head]) if head >= 0 else int64(-1)
            newest[b, link], at[b, link], before[b, link] = position, position, -1
            if position >= 0:
                fetch(log.links[link], position)
    for _ in range(WALK):
        for b in range(count):
            for link in range(LINKS):
                position = at[b, link]
                # The owner was prefetched one round ago, so only now can its keys be prefetched.
                if before[b, link] >= 0:
                    fetch(turns, int64(log.owner[index(before[b, link] // GRANULE)]))
                before[b, link] = position
                if position >= 0:
                    position = index(position)
                    fetch(log.tokens, position)
                    fetch(log.owner, position // GRANULE)
                    position = int64(log.links[link, position])
                    if position >= 0:
                        fetch(log.links[link], position)
                    at[b, link] = position


@part
def _fetch_heads(rows: NDArray[np.int64], first: int, count: int, live: Any, log: TokenLog, work: Any) -> None:
    newest = work.newest_links
    for b in range(count):
        turn = live[rows[first + b]]
        keys, tail, last = turn.keys, turn.tail, int64(turn.last)
        token = tail[last]
        task_hash, env_hash = mix(keys[TOOLS_KEY], token), mix(keys[ENV_KEY], token)
        newest[b, ENV4] = -1
        if token >= 0:
            prev1 = tail[last - 1]
            task_hash, env_hash = mix(mix(keys[TASK_KEY], token), prev1), mix(env_hash, prev1)
            if prev1 >= 0:
                prev2 = tail[last - 2]
                prev3 = tail[last - 3] if prev2 >= 0 else np.int32(-1)
                newest[b, ENV4] = head_of(lengthened(env_hash, prev2, prev3), log.heads[ENV4])
        newest[b, EXACT1] = head_of(mix(keys[EXACT_KEY], token), log.heads[EXACT1])
        newest[b, TASK2], newest[b, ENV2] = head_of(task_hash, log.heads[TASK2]), head_of(env_hash, log.heads[ENV2])
        for link in range(LINKS):
            if newest[b, link] >= 0:
                fetch(log.heads[link], newest[b, link])
