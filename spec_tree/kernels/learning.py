"""Learn from verified tokens how reliable candidates, votes and nodes are.

A candidate (a position in a stored turn) votes for the token after it. The odds of a kind of candidates are its share
of right votes, to the power ``_SHARPNESS``. The hashed weights take a gradient step for all children on the accepted
path. The network is not trained online. Candidates that agree, or agreed until a few tokens ago, become anchors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.candidates import length_class, next_position
from turntree.spec_tree.kernels.compiled import float32, index, inlined, int64, part
from turntree.spec_tree.kernels.indexing import follow_row
from turntree.spec_tree.kernels.layout import (
    ANCHORS,
    CONTEXT,
    ENV,
    ENV_KEY,
    FEW,
    FOLLOWER,
    FOLLOWERS,
    GRANULE,
    KINDS,
    LENGTHS,
    TABLES,
    UNMATCHED,
    ContextLog,
    TokenLog,
)

_RATE, _SCALE_RATE = np.float32(0.08), np.float32(0.001)  #: step sizes of the hashed weights and of the votes' scale
_SHARPNESS = 2.0  #: exponent of the odds: prefers reliable candidates over unreliable ones
_TEACH_EVERY, _SETTLE_EVERY = 4, 64  #: count votes every 4th update, recompute the odds every 64th
_MEMORY = 4000.0  #: votes per kind and length after which older votes count half
_STALE = 100  #: tokens after which an unconfirmed anchor is dropped
_SAME = 24  #: anchors at most this many positions apart are merged


@part
def settle_odds(weights: Any) -> None:
    for kind in range(KINDS):
        for length in range(LENGTHS):
            share = min((weights.tried[kind, length, 1] + 0.3) / (weights.tried[kind, length, 0] + 1.0), 0.98)
            weights.odds[kind, length] = (share / (1.0 - share)) ** _SHARPNESS


@part
def learn_candidates(turn: Any, sampled: NDArray[np.int32], log: TokenLog, contexts: ContextLog, weights: Any) -> None:
    """Count right and wrong votes of a turn's candidates after ``sampled`` and renew the turn's anchors."""
    anchors, ages = turn.anchors, turn.ages
    length = len(sampled)
    anchored = int64(0)
    # Advance the anchors with the turn and close the gaps that dropped anchors leave.
    for i in range(turn.anchor_count):
        if ages[i] + length <= _STALE and anchors[i] + length < len(log.tokens) - 1:
            anchors[anchored], ages[anchored] = anchors[i] + length, ages[i] + length
            anchored += 1
    weights.updates += 1
    teach = weights.updates % _TEACH_EVERY == 0
    for c in range(turn.candidate_count):
        position, kind, match = int64(turn.candidates[c]), turn.kinds[c], turn.matches[c]
        agreed, token = int64(0), np.int32(-1)
        while agreed < length:
            position, token = next_position(position, kind, turn.context[1], log, contexts)
            if token < 0:
                break
            if teach and (kind != UNMATCHED or agreed == 0):  # a candidate that has agreed is no longer ``UNMATCHED``
                of = match if kind == UNMATCHED else length_class(match + agreed)
                _count(weights.tried[kind, of], token == sampled[agreed])
                if kind != CONTEXT:
                    votes = log.votes[index(log.owner[index(position // GRANULE)])]
                    votes[0] += 1
                    votes[1] += token == sampled[agreed]
            if token != sampled[agreed]:
                break
            agreed += 1
        if kind == CONTEXT or token < 0:
            continue
        strength = agreed + (1 if kind == UNMATCHED else match)
        if strength < 2:
            continue
        if agreed == length:
            anchored = _anchor(position, int64(0), anchors, ages, anchored)
        elif agreed >= length - 2 and kind != ENV:  # only the last tokens differ: treat the candidate as agreeing
            anchored = _anchor(position - 1 + length - agreed, int64(length - agreed), anchors, ages, anchored)
    if teach:
        _learn_followers(turn, sampled, log, weights)
    if teach and weights.updates % _SETTLE_EVERY == 0:
        settle_odds(weights)
    turn.anchor_count = anchored


@inlined
def _count(tried: NDArray[np.float64], right: bool) -> None:
    # older votes fade because the policy changes
    tried[0] += 1.0
    if right:
        tried[1] += 1.0
    if tried[0] > _MEMORY:
        tried[0] *= 0.5
        tried[1] *= 0.5


@part
def _learn_followers(turn: Any, sampled: NDArray[np.int32], log: TokenLog, weights: Any) -> None:
    # At the root, only the column of the known number of votes learns. Below, the number is unknown: all columns learn.
    few = min(turn.candidate_count, FEW)
    for level in range(min(len(sampled), 2)):
        row = follow_row(turn.keys[ENV_KEY], turn.tail[turn.last] if level == 0 else sampled[0])
        for i in range(FOLLOWERS):
            token = log.followers[row, i]
            if token < 0:
                break
            if level == 0:
                _count(weights.tried[FOLLOWER, 2 * few], token == sampled[0])
            else:
                for votes in range(FEW + 1):
                    _count(weights.tried[FOLLOWER, 2 * votes + 1], token == sampled[1])


@part
def _anchor(position: int, age: int, anchors: NDArray[np.int32], ages: NDArray[np.int32], count: int) -> int:
    # Replaces an anchor nearby or, when all slots are in use, the stalest anchor.
    for i in range(count):
        if abs(anchors[i] - position) <= _SAME:
            if age <= ages[i]:
                anchors[i], ages[i] = position, age
            return count
    if count < ANCHORS:
        anchors[count], ages[count] = position, age
        return count + 1
    stalest = 0
    for i in range(count):
        if ages[i] > ages[stalest]:
            stalest = i
    if ages[stalest] > age:
        anchors[stalest], ages[stalest] = position, age
    return count


@part
def learn_nodes(turn: Any, sampled: NDArray[np.int32], weights: Any) -> None:
    tokens, parents, hashes = turn.node_token, turn.node_parent, turn.node_hashes
    votes, probabilities = turn.node_votes, turn.node_probability
    current = 0
    for token in sampled:
        right = -1
        for z in range(current + 1, turn.node_count):
            if parents[z] != current:
                continue
            truth = float32(0.0)
            if tokens[z] == token:
                truth, right = float32(1.0), z
            error = truth - probabilities[z]
            weights.scale += _SCALE_RATE * error * votes[z]
            for j in range(TABLES if hashes[z, 1] >= 0 else 1):
                rate = _RATE if j < 2 else _RATE * float32(0.5)  # tables 0 and 1 are keyed by a single token
                weights.hashed[j, hashes[z, j]] += rate * error
        if right < 0:
            return
        current = right


@part
def accepted(turn: Any, sampled: NDArray[np.int32]) -> int:
    """Return how many tokens of ``sampled`` lie on one path of the nodes that were proposed."""
    tokens, parents, order = turn.node_token, turn.node_parent, turn.node_order
    current = 0
    for depth in range(len(sampled)):
        right = -1
        for z in range(current + 1, turn.node_count):
            if parents[z] == current and tokens[z] == sampled[depth]:
                right = z
                break
        if right < 0 or order[right] < 0 or order[right] >= turn.drafted:
            return depth
        current = right
    return len(sampled)
