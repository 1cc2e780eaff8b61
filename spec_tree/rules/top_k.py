"""Stored distributions of which only the K most probable tokens are known.

A token was drawn from q, but only q' is stored: q on its K most probable tokens, not normalised. The ratio rule
(accept with probability min(1, p / q), ``verify``) needs no more. It rejects a stored token outside the K and samples
its position from (p - q')+, which is exact for every K. A small K lowers the acceptance rate; the result stays exact.

Invariant: which tokens of q are known depends on q alone, not on the drawn token. The drawn token's own
probability is known, but adding it to q' would accept too many tokens, which biases the result.

Of the new distribution p, a scoring pass also returns only the K most probable tokens. ``align`` puts p and q over
the same columns. Where ``align`` has to impute values of p, it reports the imputed mass. An exact rule then
asks the policy for more of p's most probable tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

OTHER = -1  #: column for all tokens without a column of their own; also fills unused columns, which have no mass


class AlignedDistributions(NamedTuple):
    """p and the known part of q at several positions, over the same columns."""

    ids: Ints  #: token of each column, ``OTHER`` in the last and in unused columns, shape (positions, columns)
    p: Floats  #: new probabilities, rows sum to 1, shape (positions, columns)
    q: Floats  #: old probabilities where known, else 0, shape (positions, columns)
    imputed: Floats  #: mass of p that was imputed to tokens of q, shape (positions,)


def known_probability(tokens: ArrayLike, top_ids: ArrayLike, top_logprobs: ArrayLike) -> Floats:
    """Return each token's probability if it is among its position's most probable tokens, else 0.

    >>> known_probability([4, 9], [[4, 1], [4, 1]], [[-0.5, -1.0], [-0.5, -1.0]]).round(3).tolist()
    [0.607, 0.0]
    """
    same = np.asarray(top_ids, np.int64) == np.asarray(tokens, np.int64)[:, None]
    known: Floats = (same * np.exp(np.asarray(top_logprobs, np.float64))).sum(1)
    return known


def align(p_ids: ArrayLike, p_logprobs: ArrayLike, q_ids: ArrayLike, q_logprobs: ArrayLike) -> AlignedDistributions:
    """Put p and q over the same columns: the tokens of p, the tokens of q that p lacks, and ``OTHER``.

    p and q come as their most probable tokens (distinct in a row) with natural log-probabilities, shape (positions, k).
    The mass of p beyond its known tokens is spread over the tokens of q that p lacks: in proportion to q, each at most
    the smallest known probability of p. The rest goes to ``OTHER``.
    """
    of_p, of_q = np.asarray(p_ids, np.int64), np.asarray(q_ids, np.int64)
    p, q = np.exp(np.asarray(p_logprobs, np.float64)), np.exp(np.asarray(q_logprobs, np.float64))
    same = of_p[:, :, None] == of_q[:, None, :]
    missing = ~same.any(1)
    tail = np.maximum(1.0 - p.sum(1, keepdims=True), 0.0)
    lacking = q * missing
    free = np.maximum(1.0 - (q * ~missing).sum(1, keepdims=True), 1e-300)
    least = p.min(1, keepdims=True, initial=np.inf)
    imputed = np.minimum(tail * np.minimum(lacking / free, 1.0), least)
    other = np.maximum(tail - imputed.sum(1, keepdims=True), 0.0)
    p_columns = np.concatenate([p, imputed, other], 1)
    q_columns = np.concatenate([(same * q[:, None, :]).sum(2), lacking, np.zeros_like(other)], 1)
    ids = np.concatenate([of_p, np.where(missing, of_q, OTHER), np.full(other.shape, OTHER)], 1)
    # Recorded log-probabilities are float32, so a row's sum differs from 1 by a few 1e-7.
    total = p_columns.sum(1, keepdims=True)
    return AlignedDistributions(ids, p_columns / np.where(total > 0, total, 1.0), q_columns, (imputed * missing).sum(1))
