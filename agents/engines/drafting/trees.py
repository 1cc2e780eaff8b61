"""Operations on a batch of draft trees, one row per request: spread and select rows, and prepend turn-level drafts.

A tree's nodes are draft tokens; a node continues the text of its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.draft import DraftBatch

Ints = NDArray[np.int64]


def spread(draft: DraftBatch, at: Sequence[int], rows: int) -> DraftBatch:
    """Return a batch of ``rows`` rows that has the given trees at the rows ``at`` and no draft elsewhere."""
    if len(at) == rows:
        return draft
    counts = np.zeros(rows, np.int64)
    counts[np.asarray(at, np.int64)] = np.diff(draft.offsets)
    return replace(draft, offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))


def select(draft: DraftBatch, rows: Ints) -> DraftBatch:
    """Return the trees of some rows, in ascending order."""
    counts = np.diff(draft.offsets)
    if len(rows) == draft.rows:
        return draft
    kept = np.zeros(draft.rows, bool)
    kept[rows] = True
    nodes = np.repeat(kept, counts)
    return DraftBatch(
        tokens=draft.tokens[nodes],
        parents=draft.parents[nodes],
        depths=draft.depths[nodes],
        probabilities=draft.probabilities[nodes],
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[rows])]),
    )


def within(draft: DraftBatch, vocabulary: int) -> DraftBatch:
    """Return the batch with every tree removed (its row is empty) that has a token outside of the vocabulary."""
    beyond = draft.tokens >= vocabulary
    if not beyond.any():
        return draft
    counts = np.diff(draft.offsets)
    row_of = np.repeat(np.arange(draft.rows), counts)
    whole = ~np.isin(np.arange(draft.rows), row_of[beyond])
    return spread(select(draft, np.flatnonzero(whole)), np.flatnonzero(whole).tolist(), draft.rows)


def with_turn_drafts(draft: DraftBatch, turn_drafts: Sequence[Sequence[int]]) -> DraftBatch:
    """Return each row's turn-level draft as a chain, followed by its tree's nodes that are not on the chain."""
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    probabilities: list[float] = []
    counts = np.zeros(draft.rows, np.int64)
    for b, turn_draft in enumerate(turn_drafts):
        start = len(tokens)
        tokens += turn_draft
        parents += range(-1, len(turn_draft) - 1)
        depths += range(1, len(turn_draft) + 1)
        probabilities += [1.0] * len(turn_draft)
        # Index of each node of the tree in the combined draft; nodes that repeat the chain map onto it.
        index = {-1: -1}
        for node in range(int(draft.offsets[b]), int(draft.offsets[b + 1])):
            token, depth = int(draft.tokens[node]), int(draft.depths[node])
            above = index[int(draft.parents[node])]
            if above == depth - 2 and depth <= len(turn_draft) and turn_draft[depth - 1] == token:
                index[node - int(draft.offsets[b])] = depth - 1
                continue
            index[node - int(draft.offsets[b])] = len(tokens) - start
            tokens.append(token)
            parents.append(above)
            depths.append(depth)
            probabilities.append(float(draft.probabilities[node]))
        counts[b] = len(tokens) - start
    return DraftBatch(
        tokens=np.array(tokens, np.int32),
        parents=np.array(parents, np.int32),
        depths=np.array(depths, np.int32),
        probabilities=np.array(probabilities, np.float32),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
    )
