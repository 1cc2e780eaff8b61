from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def token_counts(tokens: Sequence[int] | Ints, vocabulary: int) -> Ints:
    """Count the occurrences of each token, shape (vocabulary,)."""
    return np.bincount(np.asarray(tokens, np.int64), minlength=vocabulary).astype(np.int64)


def token_counts_on_paths(tokens: NDArray[np.int32], parents: NDArray[np.int32], output: Ints) -> Ints:
    """Count each token's occurrences before the token that follows each node of one tree.

    Args:
        tokens: Token of each node, shape (nodes,).
        parents: Index of the parent, -1 at the root, before its children, shape (nodes,).
        output: Counts of the tokens sampled so far, shape (vocabulary,).

    Returns:
        Shape (1 + nodes, vocabulary): first after the last sampled token, then after each node.
    """
    counts = np.empty((1 + len(tokens), len(output)), np.int64)
    counts[0] = output
    for node, (token, parent) in enumerate(zip(tokens.tolist(), parents.tolist(), strict=True)):
        counts[1 + node] = counts[1 + parent]
        counts[1 + node, token] += 1
    return counts
