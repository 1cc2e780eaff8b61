"""The probability of a node given its parent: a logistic model of the votes for it.

Its logit is the sum of the votes' log-odds, of weights learnt online for the
node's token, the token before it, both, and how it is supported, and of a small
network over sixteen figures. For a node that only places without agreement and
followers voted for, only the votes and the weight of its token count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from turntree.spec_tree.kernels.compiled import float32, index, inlined, inlined_fast, int64, uint32, uint64
from turntree.spec_tree.kernels.elementary import logarithm, logistic
from turntree.spec_tree.kernels.layout import (
    AROUND_ANCHOR,
    AT_ANCHOR,
    CONTEXT,
    ENV,
    EXACT,
    FEW,
    HASHED,
    KINDS,
    NEAR_ANCHOR,
    TABLES,
    TASK,
    TOOLS,
    UNMATCHED,
)
from turntree.spec_tree.kernels.vector import network

_LOG1P = np.log1p(np.arange(256)).astype(np.float32)
"""Of a count, ``log(1 + count)``; there are fewer than 256 places and nodes to count."""
_FAINT = np.float32(-6.0)
"""Log-probability of a path below which the network's input is clipped: it was fitted on none lower."""


@inlined
def _hashed(first: int, second: int) -> int:
    """An entry of a hashed table for two numbers."""
    key = uint64(uint32(first)) * uint64(0x9E3779B97F4A7C15) ^ uint64(uint32(second)) * uint64(0xC2B2AE3D27D4EB4F)
    key = (key ^ (key >> uint64(31))) * uint64(0xD6E8FEB86659FD93)
    return int64((key >> uint64(40)) & uint64(HASHED - 1))


@inlined_fast
def weigh(current: int, first: int, nodes: int, turn: Any, weights: Any, work: Any) -> None:
    """Estimate the probability of the children of ``current``, the nodes ``first:nodes``.

    It is one function because the compiler adds in another order where it is split, which changes the last bits.

    Args:
        turn: A ``LIVE_TURN``; votes, probabilities and hashes of the children are filled.
        weights: The model, a ``WEIGHTS``.
        work: A ``SCRATCH`` with the votes for the children; their inputs are filled.
    """
    tokens, votes, probabilities, hashes = turn.node_token, turn.node_votes, turn.node_probability, turn.node_hashes
    weight, support, best_length, newest_place = work.weight, work.support, work.best_length, work.newest_place
    inputs, total, voters, few = work.inputs, work.total, work.voters, min(work.voters, FEW)
    current = index(current)
    log_total, log_path = logarithm(total), max(logarithm(work.path[current]), _FAINT)
    for child in range(first, nodes):
        z = index(child)
        vote = logarithm(min(max(weight[z] / (total - weight[z]), float32(1e-4)), float32(2000.0)))
        # the second number tells the tables' properties apart where a token is the first: 1, 2, 3 and more
        hashes[z, 0] = _hashed(tokens[z], int64(1))
        learnt = weights.hashed[0, hashes[z, 0]]
        if support[z, KINDS] == support[z, UNMATCHED]:
            hashes[z, 1] = -1  # tells ``learn_nodes`` that only the token's own weight counted
            logit = learnt + weights.scale * vote
        else:
            mine = min(support[z, KINDS], FEW)
            hashes[z, 1] = _hashed(tokens[current], int64(2))
            hashes[z, 2] = _hashed(tokens[current], tokens[z] + 3)
            # no hash: each class of agreement with each pair of numbers of votes has an entry of its own
            hashes[z, 3] = ((best_length[z] * 9 + mine) * 9 + few) & (HASHED - 1)
            for j in range(1, TABLES):
                learnt += weights.hashed[j, hashes[z, j]]
            # the inputs of the network, whose weights are fitted to this order
            inputs[z, 0] = vote
            inputs[z, 1] = _LOG1P[support[z, EXACT]]
            inputs[z, 2] = _LOG1P[support[z, TASK] + support[z, TOOLS]]
            inputs[z, 3] = _LOG1P[support[z, ENV]]
            inputs[z, 4] = _LOG1P[support[z, UNMATCHED]]
            inputs[z, 5] = _LOG1P[support[z, CONTEXT]]
            inputs[z, 6] = _LOG1P[support[z, AT_ANCHOR]]
            inputs[z, 7] = _LOG1P[support[z, NEAR_ANCHOR] + support[z, AROUND_ANCHOR]]
            inputs[z, 8] = (work.longest - best_length[z]) * float32(1 / 18)  # classes behind the best
            inputs[z, 9] = _LOG1P[voters]
            inputs[z, 10] = 1.0 if z == work.newest_node else 0.0
            inputs[z, 11] = _LOG1P[nodes - first]
            inputs[z, 12] = _LOG1P[newest_place[z] - work.newest]  # how many newer places there are, about
            inputs[z, 13] = learnt
            inputs[z, 14] = log_path
            inputs[z, 15] = log_total
            logit = learnt + weights.scale * vote
            logit += network(inputs[z], weights.inner, weights.bias, weights.outer)
        votes[z], probabilities[z] = vote, logistic(logit)
