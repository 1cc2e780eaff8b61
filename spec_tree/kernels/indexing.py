"""How a token log finds what was sampled before.

Each position links to the newest earlier one with the same key: exact state
and token, task and last two tokens, environment and last two, environment and
last four. Heads are direct-mapped and nothing is stored of a key, so a link
may lead to another key's position: whoever follows one compares the tokens.
As in LZ77, a walk goes from new to old, and what has been overwritten is left
behind without being unlinked.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.compiled import inlined, int64, kernel, part, uint32, uint64
from turntree.spec_tree.kernels.layout import (
    BACK,
    END,
    ENV2,
    ENV4,
    EXACT1,
    FOLLOWED,
    FOLLOWERS,
    GRANULE,
    TASK2,
    ContextLog,
    TokenLog,
)
from turntree.spec_tree.splitmix import GOLDEN

_GOLDEN = np.uint64(GOLDEN)


@inlined
def mix(key: int, token: int) -> int:
    """``key`` with one more token, 64 bits."""
    key = (key ^ uint64(uint32(token + 7))) * _GOLDEN
    return key ^ (key >> uint64(29))


@inlined
def lengthened(key: int, two: int, three: int) -> int:
    """The key of an environment and two tokens, with the two before these."""
    return mix(mix(mix(key, two), three), 1)


@inlined
def head_of(key: int, heads: NDArray[np.int32]) -> int:
    """Index of ``key`` in its table of heads."""
    return int64(key & uint64(len(heads) - 1))


@inlined
def follow_row(env: int, token: int) -> int:
    """Where it is remembered what followed ``token`` in an environment."""
    return int64(mix(env, token) & uint64(FOLLOWED - 1))


@inlined
def _link(kind: int, key: int, at: int, log: TokenLog) -> None:
    head = head_of(key, log.heads[kind])
    log.links[kind, at] = log.heads[kind, head]
    log.heads[kind, head] = at


@part
def index_run(start: int, stop: int, exact: int, task: int, env: int, log: TokenLog) -> None:
    """Link the positions ``start:stop`` of one turn, which lie in one piece; the marks before them stand already.

    A piece that begins with ``BACK`` goes on from the position that its link names.
    """
    tokens = log.tokens
    before = int64(start)
    before, one = _before(before, log)
    before, two = _before(before, log) if one >= 0 else (before, np.int32(-1))
    before, three = _before(before, log) if two >= 0 else (before, np.int32(-1))
    for at in range(start, stop):
        token = tokens[at]
        narrow, middle, wide = mix(exact, token), mix(task, token), mix(env, token)
        _link(int64(EXACT1), narrow, at, log)
        if token >= 0:
            follow = follow_row(env, one)
            log.followers[follow, log.followed[follow] % FOLLOWERS] = token
            log.followed[follow] += 1
            middle, wide = mix(middle, one), mix(wide, one)
            if one >= 0:
                _link(int64(ENV4), lengthened(wide, two, three), at, log)
        _link(int64(TASK2), middle, at, log)
        _link(int64(ENV2), wide, at, log)
        three, two, one = two, one, token


@inlined
def _before(at: int, log: TokenLog) -> tuple[int, np.int32]:
    """The position before ``at`` in its turn, and what stands there; -1 before the first."""
    at = at - 1
    token = log.tokens[at]
    if token == BACK:
        at = int64(log.links[EXACT1, at])
        token = log.tokens[at] if at >= 0 else np.int32(-1)
    return at, token


@part
def claim(start: int, stop: int, turn: int, log: TokenLog) -> None:
    """Let ``turn`` own the granules of ``start:stop``, where nothing that stood there is found any more."""
    for at in range(start, stop):
        log.tokens[at] = END
    for granule in range(start // GRANULE, (stop + GRANULE - 1) // GRANULE):
        log.owner[granule] = turn


@part
def _index_context(start: int, stop: int, log: ContextLog) -> None:
    """Link the context ``start:stop`` by its last two tokens."""
    for at in range(start + 1, stop):
        head = context_head(start, log.tokens[at], log.tokens[at - 1], log)
        log.link[at] = log.heads[head]
        log.heads[head] = at


@kernel
def write_contexts(
    tokens: NDArray[np.int32],
    begins: NDArray[np.int64],
    bounds: NDArray[np.int64],
    rows: NDArray[np.int64],
    live: NDArray[np.void],
    log: ContextLog,
) -> None:
    """Write the ``tokens`` from ``begins[i]`` on into ``bounds[i]:bounds[i + 1]`` as the context of ``rows[i]``, for
    all rows of ``live``; -1 is no row."""
    for i in range(len(rows)):
        start, stop = bounds[i], bounds[i + 1]
        for at in range(start, stop):
            log.tokens[at] = tokens[begins[i] + at - start]
        _index_context(start, stop, log)
        if rows[i] >= 0:
            turn = live[rows[i]]
            turn.context[0], turn.context[1] = start, stop


@inlined
def context_head(start: int, token: int, before: int, log: ContextLog) -> int:
    """Index of two tokens of the context that begins at ``start``."""
    return head_of(mix(mix(uint64(start) * _GOLDEN, token), before), log.heads)
