"""How likely a node is, given its parent: a logistic model of the votes for it.

The sum of the votes' log-odds, weights learnt online for the node's token, the
token before it, both, and how it is supported, and a small network over sixteen
figures. A node that only places without agreement and followers speak for has
the votes and the weight of its token alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from turntree.spec_tree.kernels.candidates import UNMATCHED
from turntree.spec_tree.kernels.compiled import float32, index, inlined, inlined_fast, int64, uint32, uint64
from turntree.spec_tree.kernels.elementary import logarithm, logistic
from turntree.spec_tree.kernels.layout import FEW, HASHED, KINDS, TABLES
from turntree.spec_tree.kernels.vector import network

_LOG1P = np.log1p(np.arange(256)).astype(np.float32)
_FAINT = np.float32(-6.0)
"""Log-probability of a path below which the network is not told how faint it is: it has seen none such."""


@inlined
def _hashed(first: int, second: int) -> int:
    key = uint64(uint32(first)) * uint64(0x9E3779B97F4A7C15) ^ uint64(uint32(second)) * uint64(0xC2B2AE3D27D4EB4F)
    key = (key ^ (key >> uint64(31))) * uint64(0xD6E8FEB86659FD93)
    return int64((key >> uint64(40)) & uint64(HASHED - 1))


@inlined_fast
def weigh(current: int, first: int, nodes: int, turn: Any, weights: Any, work: Any) -> None:
    """Estimate the probability of the children of ``current``, the nodes ``first:nodes``.

    Args:
        current: The parent.
        first: Its first child.
        nodes: Behind its last child.
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
        hashes[z, 0] = _hashed(tokens[z], int64(1))
        learnt = weights.hashed[0, hashes[z, 0]]
        if support[z, KINDS] == support[z, UNMATCHED]:
            hashes[z, 1] = -1
            logit = learnt + weights.scale * vote
        else:
            mine = min(support[z, KINDS], FEW)
            hashes[z, 1] = _hashed(tokens[current], int64(2))
            hashes[z, 2] = _hashed(tokens[current], tokens[z] + 3)
            hashes[z, 3] = ((best_length[z] * 9 + mine) * 9 + few) & (HASHED - 1)
            for j in range(1, TABLES):
                learnt += weights.hashed[j, hashes[z, j]]
            inputs[z, 0] = vote
            inputs[z, 1] = _LOG1P[support[z, 0]]
            inputs[z, 2] = _LOG1P[support[z, 1] + support[z, 8]]
            inputs[z, 3] = _LOG1P[support[z, 2]]
            inputs[z, 4] = _LOG1P[support[z, 3]]
            inputs[z, 5] = _LOG1P[support[z, 4]]
            inputs[z, 6] = _LOG1P[support[z, 5]]
            inputs[z, 7] = _LOG1P[support[z, 6] + support[z, 7]]
            inputs[z, 8] = (work.longest - best_length[z]) * float32(1 / 18)
            inputs[z, 9] = _LOG1P[voters]
            inputs[z, 10] = 1.0 if z == work.newest_node else 0.0
            inputs[z, 11] = _LOG1P[nodes - first]
            inputs[z, 12] = _LOG1P[newest_place[z] - work.newest]
            inputs[z, 13] = learnt
            inputs[z, 14] = log_path
            inputs[z, 15] = log_total
            logit = learnt + weights.scale * vote
            logit += network(inputs[z], weights.inner, weights.bias, weights.outer)
        votes[z], probabilities[z] = vote, logistic(logit)
