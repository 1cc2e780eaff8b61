"""Sample, then match: what the policy says decides, the draft only saves passes.

At the last token the policy draws x. If x is a drafted child, its own
distribution is already there: go down and draw again. Otherwise, and at a
leaf, x is the last token of the step. The rule is exact for any draft with
distinct siblings (speculative sampling with a point-mass draft, SRT,
arXiv 2601.09083; the acceptance of a node is the policy's mass on its
children).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree import DraftBatch

Ints = NDArray[np.int64]
Draw = Callable[[Ints, Ints, int], tuple[Ints, NDArray[np.float64]]]
"""``draw(rows, nodes, depth)``: one token per row from the distribution after ``nodes`` (indices into
rows + nodes, see ``root``), and its log-probability; ``depth`` tokens were drawn before it in this step."""


class Verified(NamedTuple):
    """What a step emitted, depth first."""

    tokens: Ints
    """Shape (depths, rows); -1 where a row had stopped."""
    logprobs: NDArray[np.float64]
    """Shape (depths, rows)."""
    path: Ints
    """Draft node (index within the row) that the token matched, -1 if none, shape (depths, rows)."""
    emitted: Ints
    """Tokens of each row, shape (rows,)."""


def root(draft: DraftBatch) -> Ints:
    """Index of each row's last token where rows and their nodes are laid out in turn, shape (rows,).
    Node ``j`` of row ``b`` is ``root[b] + 1 + j``."""
    return np.arange(draft.rows) + draft.offsets[:-1]


def sample_then_match(
    draft: DraftBatch, draw: Draw, room: Ints, stops: Callable[[Ints, Ints], NDArray[np.bool_]]
) -> Verified:
    """Walk every row of a batch down its tree.

    Args:
        draft: One tree a row.
        draw: Draws from the policy.
        room: Tokens that each row may still emit, at least 1, shape (rows,).
        stops: ``stops(rows, tokens)``: which of the tokens end their row, as booleans.
    """
    rows = draft.rows
    counts = np.diff(draft.offsets)
    node_row = np.repeat(np.arange(rows), counts)
    at = root(draft)
    above = at[node_row] + 1 + draft.parents
    width = int(draft.tokens.max(initial=0)) + 1
    keys = above * width + draft.tokens
    order = np.argsort(keys)
    keys = keys[order]

    alive = np.arange(rows)
    here = at.copy()
    tokens: list[Ints] = []
    logprobs: list[NDArray[np.float64]] = []
    path: list[Ints] = []
    emitted = np.zeros(rows, np.int64)
    depth = 0
    while len(alive):
        drawn, lps = draw(alive, here[alive], depth)
        depth += 1
        emitted[alive] = depth
        wanted = here[alive] * width + drawn
        found = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        hit = (keys[found] == wanted) & (drawn < width) if len(keys) else np.zeros(len(alive), bool)
        node = np.where(hit, order[found] if len(keys) else 0, 0)
        _append(tokens, rows, alive, drawn)
        _append(logprobs, rows, alive, lps)
        _append(path, rows, alive, np.where(hit, node - draft.offsets[alive], -1))
        on = hit & ~stops(alive, drawn) & (depth < room[alive])
        here[alive] = at[alive] + 1 + node - draft.offsets[alive]
        alive = alive[on]
    return Verified(np.stack(tokens), np.stack(logprobs), np.stack(path), emitted)


def _append(levels: list[NDArray], rows: int, alive: Ints, values: NDArray) -> None:  # type: ignore[type-arg]
    level = np.full(rows, -1, values.dtype)
    level[alive] = values
    levels.append(level)
