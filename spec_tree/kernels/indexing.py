"""Index of the token log: each position links to the newest earlier position with an equal key.

The four keys are: exact state and last token; task and last two tokens; environment and last two tokens; environment
and last four tokens. As in LZ77, a hash selects the head of a chain, keys are not stored, and overwritten positions
stay linked. Code that follows a link must therefore compare the tokens.
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
    """Return ``key`` extended by one token, 64 bits."""
    key = (key ^ uint64(uint32(token + 7))) * _GOLDEN
    return key ^ (key >> uint64(29))


@inlined
def lengthened(key: int, two: int, three: int) -> int:
    return mix(mix(mix(key, two), three), 1)


@inlined
def head_of(key: int, heads: NDArray[np.int32]) -> int:
    return int64(key & uint64(len(heads) - 1))


@inlined
def follow_row(env: int, token: int) -> int:
    """Return the row of ``followers`` and ``followed`` for ``token`` in an environment."""
    return int64(mix(env, token) & uint64(FOLLOWED - 1))


@inlined
def _link(kind: int, key: int, at: int, log: TokenLog) -> None:
    head = head_of(key, log.heads[kind])
    log.links[kind, at] = log.heads[kind, head]
    log.heads[kind, head] = at


@part
def index_run(start: int, stop: int, exact: int, task: int, env: int, log: TokenLog) -> None:
    """Link the positions ``start:stop`` of one turn, which lie in one piece; earlier positions must be linked."""
    # The keys include up to three tokens before ``start``, which may lie in an earlier piece.
    tokens = log.tokens
    before = int64(start)
    before, prev1 = _before(before, log)
    before, prev2 = _before(before, log) if prev1 >= 0 else (before, np.int32(-1))
    before, prev3 = _before(before, log) if prev2 >= 0 else (before, np.int32(-1))
    for at in range(start, stop):
        token = tokens[at]
        exact_hash, task_hash, env_hash = mix(exact, token), mix(task, token), mix(env, token)
        _link(int64(EXACT1), exact_hash, at, log)
        if token >= 0:
            follow = follow_row(env, prev1)
            log.followers[follow, log.followed[follow] % FOLLOWERS] = token
            log.followed[follow] += 1
            task_hash, env_hash = mix(task_hash, prev1), mix(env_hash, prev1)
            if prev1 >= 0:
                _link(int64(ENV4), lengthened(env_hash, prev2, prev3), at, log)
        _link(int64(TASK2), task_hash, at, log)
        _link(int64(ENV2), env_hash, at, log)
        prev3, prev2, prev1 = prev2, prev1, token


@inlined
def _before(at: int, log: TokenLog) -> tuple[int, np.int32]:
    at = at - 1
    token = log.tokens[at]
    if token == BACK:
        at = int64(log.links[EXACT1, at])
        token = log.tokens[at] if at >= 0 else np.int32(-1)
    return at, token


@part
def claim(start: int, stop: int, turn: int, log: TokenLog) -> None:
    # Overwrite the old tokens with END before the owner changes, so that readers of the old turn stop.
    for at in range(start, stop):
        log.tokens[at] = END
    for granule in range(start // GRANULE, (stop + GRANULE - 1) // GRANULE):
        log.owner[granule] = turn


@part
def _index_context(start: int, stop: int, log: ContextLog) -> None:
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
    """Write the contexts of all ``rows`` of ``live`` and link them; a row of -1 is skipped.

    Context ``i`` is copied from ``tokens[begins[i]:]`` into ``bounds[i]:bounds[i + 1]`` of ``log``.
    """
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
    return head_of(mix(mix(uint64(start) * _GOLDEN, token), before), log.heads)
