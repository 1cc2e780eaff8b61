"""Stored distributions of which only the most probable tokens are known.

Of the distribution q that a stored token was drawn from, its K most probable tokens are kept. The
part q' of q on them is not normalised, its sum is below 1, but it is all that the ratio
rule needs: a stored token outside the K is rejected, and the rejected position
is drawn from (p - q')+, which is exact for every K (``verify.residual``). So K
costs acceptance, never exactness.

Invariant: which tokens of q are known depends on q alone, not on the token that
was drawn from it. Adding the drawn token's own probability, although it is
known, would accept more and be wrong.

Of the new distribution p, too, only the K most probable tokens come with a scoring pass.
``align`` brings both over the same columns; where p has to be drafted there it
reports the drafted mass, and an exact rule asks the policy for a longer row instead.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

OTHER = -1
"""Stands for all tokens that no column names; also fills unused columns, which have no mass."""


class AlignedLaws(NamedTuple):
    """p and the known part of q at several positions, over the same columns."""

    ids: Ints
    """Token of each column, ``OTHER`` in the last one and in unused ones, shape (positions, columns)."""
    p: Floats
    """Probabilities under the new distribution, rows sum to 1, shape (positions, columns)."""
    q: Floats
    """Probabilities under the old distribution where they are known, else 0, shape (positions, columns)."""
    turn_drafted: Floats
    """Probability under p that had to be drafted at tokens of q, shape (positions,)."""


def known_probability(tokens: ArrayLike, top_ids: ArrayLike, top_logprobs: ArrayLike) -> Floats:
    """Probability of each token where it is among its position's most probable ones, else 0.

    Args:
        tokens: Shape (positions,).
        top_ids: Shape (positions, k).
        top_logprobs: Natural log-probabilities, shape (positions, k).

    >>> known_probability([4, 9], [[4, 1], [4, 1]], [[-0.5, -1.0], [-0.5, -1.0]]).round(3).tolist()
    [0.607, 0.0]
    """
    same = np.asarray(top_ids, np.int64) == np.asarray(tokens, np.int64)[:, None]
    known: Floats = (same * np.exp(np.asarray(top_logprobs, np.float64))).sum(1)
    return known


def align(p_ids: ArrayLike, p_logprobs: ArrayLike, q_ids: ArrayLike, q_logprobs: ArrayLike) -> AlignedLaws:
    """Bring p and q over the same columns: the tokens of p, those of q that p lacks, all others.

    The mass of p beyond its known tokens is spread over the tokens of q that p lacks, in q's own
    proportions, none of them above p's least known probability; the rest is assigned to ``OTHER``.

    Args:
        p_ids: Most probable tokens of the new distribution, distinct in a row, shape (positions, k).
        p_logprobs: Their natural log-probabilities, shape (positions, k).
        q_ids: Most probable tokens of the old distribution, distinct in a row, shape (positions, l).
        q_logprobs: Their natural log-probabilities, shape (positions, l).
    """
    of_p, of_q = np.asarray(p_ids, np.int64), np.asarray(q_ids, np.int64)
    p, q = np.exp(np.asarray(p_logprobs, np.float64)), np.exp(np.asarray(q_logprobs, np.float64))
    same = of_p[:, :, None] == of_q[:, None, :]
    missing = ~same.any(1)
    tail = np.maximum(1.0 - p.sum(1, keepdims=True), 0.0)
    lacking = q * missing
    free = np.maximum(1.0 - (q * ~missing).sum(1, keepdims=True), 1e-300)
    least = p.min(1, keepdims=True, initial=np.inf)
    turn_draft = np.minimum(tail * np.minimum(lacking / free, 1.0), least)
    other = np.maximum(tail - turn_draft.sum(1, keepdims=True), 0.0)
    p_columns = np.concatenate([p, turn_draft, other], 1)
    q_columns = np.concatenate([(same * q[:, None, :]).sum(2), lacking, np.zeros_like(other)], 1)
    ids = np.concatenate([of_p, np.where(missing, of_q, OTHER), np.full(other.shape, OTHER)], 1)
    # Recorded log-probabilities are float32: rows miss 1 by a few 1e-7.
    total = p_columns.sum(1, keepdims=True)
    return AlignedLaws(ids, p_columns / np.where(total > 0, total, 1.0), q_columns, (turn_draft * missing).sum(1))
