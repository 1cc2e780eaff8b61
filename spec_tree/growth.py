"""Trees and chains out of the places that a turn may go on like.

The places vote for the next token, each with the odds that places of its kind
and agreement have had. A node's probability is a logistic model of these votes:
their log-odds, weights learnt online for its token, the token before it, both,
and how it is supported, and a small network over sixteen figures. The tree
grows best first by the probability of the whole path, which maximises the
expected number of accepted tokens under a budget of nodes.

A draft never changes what is sampled: the verifier decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.candidates import EXACT, FOLLOWER, UNMATCHED, length_class, step_on
from turntree.spec_tree.compiled import float32, inlined, int64, part, uint32, uint64
from turntree.spec_tree.indexing import follow_row
from turntree.spec_tree.layout import (
    CANDIDATES,
    FEW,
    FOLLOWERS,
    HASHED,
    INPUTS,
    KINDS,
    NODES,
    TABLES,
    ContextLog,
    TokenLog,
    Weights,
)
from turntree.spec_tree.vector import network

SCRATCH = np.dtype(
    [
        ("at", np.int64, CANDIDATES),
        ("following", np.int32, CANDIDATES),
        ("first_place", np.int32, NODES),
        ("depth", np.int32, NODES),
        ("path", np.float32, NODES),
        ("weight", np.float32, NODES),
        ("newest_place", np.int32, NODES),
        ("best_length", np.int32, NODES),
        ("support", np.int32, (NODES, KINDS + 1)),
        ("frontier", np.int32, NODES),
        ("inputs", np.float32, (NODES, INPUTS)),
    ],
    align=True,
)
"""Room to work in, for one row at a time. Of a place: how far it has been followed, and the next place of the same
node (-1 at the end). Of a node: its first place, depth, the probability of it and all above it, the votes for it, the
first of its places, the longest agreement among them, their number by kind and in all, and what the network sees. And
the nodes that may be handed out next."""


def scratch() -> NDArray[np.void]:
    """Room for one thread, of type ``SCRATCH`` and shape (1,)."""
    return np.zeros(1, SCRATCH)


_LOG1P = np.log1p(np.arange(256)).astype(np.float32)
_WORTH_MORE = np.float32(0.1)
"""Path probability from which on tokens that merely followed the last one are thought of."""
_SURE = np.float32(20.0)
"""Votes from which on tokens that no place agrees with are not thought of."""
_FAINT = np.float32(-6.0)
"""Log-probability of a path below which the network is not told how faint it is: it has seen none such."""
_LEAST = np.float32(1e-30)
"""Path probability at least."""


@inlined
def _hashed(first: int, second: int) -> int:
    key = uint64(uint32(first)) * uint64(0x9E3779B97F4A7C15) ^ uint64(uint32(second)) * uint64(0xC2B2AE3D27D4EB4F)
    key = (key ^ (key >> uint64(31))) * uint64(0xD6E8FEB86659FD93)
    return int64((key >> uint64(40)) & uint64(HASHED - 1))


@inlined
def _wait(node: int, path: NDArray[np.float32], frontier: NDArray[np.int32], waiting: int, most: int) -> int:
    """Put ``node`` into the line, the likeliest last, unless ``most`` likelier ones wait; returns how many wait."""
    if waiting >= most and path[node] <= path[frontier[waiting - most]]:
        return waiting
    at = waiting
    while at > 0 and path[frontier[at - 1]] > path[node]:
        frontier[at] = frontier[at - 1]
        at -= 1
    frontier[at] = node
    return waiting + 1


@part
def _child(
    token: int,
    parent: int,
    first: int,
    nodes: int,
    length: int,
    place: int,
    tokens: NDArray[np.int32],
    turn: Any,
    work: Any,
) -> int:
    """The child of ``parent`` that says ``token``, made where it is new; -1 where there is no room."""
    for z in range(first, nodes):
        if tokens[z] == token:
            return z
    if nodes == NODES:
        return -1
    tokens[nodes], turn.node_parent[nodes], turn.node_order[nodes] = token, parent, -1
    work.depth[nodes], work.first_place[nodes] = work.depth[parent] + 1, -1
    work.weight[nodes], work.best_length[nodes], work.newest_place[nodes] = 0.0, length, place
    for i in range(KINDS + 1):
        work.support[nodes, i] = 0
    return nodes


@part(fastmath=True, error_model="numpy")
def grow(
    turn: Any,
    room: int,
    budget: int,
    floor: float,
    chain: bool,
    ends: NDArray[np.int32],
    log: TokenLog,
    contexts: ContextLog,
    weights: Weights,
    work: Any,
    out_tokens: NDArray[np.int32],
    out_parents: NDArray[np.int32],
    out_depths: NDArray[np.int32],
    out_paths: NDArray[np.float32],
) -> int:
    """Weigh nodes after the newest token of a turn, the root, and hand out at most ``budget`` of them.

    Args:
        turn: A ``LIVE_TURN`` with its places; its nodes are filled.
        room: Depth at most.
        budget: Nodes at most.
        floor: Least path probability.
        chain: Only the best child of a node.
        ends: Tokens that nothing follows.
        log: Of the store.
        contexts: Of the live turns.
        weights: The model.
        work: Room to work in, a ``SCRATCH``.
        out_tokens: The draft's tokens, filled.
        out_parents: Their parents in the draft, -1 at the root, filled.
        out_depths: From 1, filled.
        out_paths: Probabilities of the whole path, filled.

    Returns:
        How many were handed out.
    """
    matches, kinds, env, context_end = turn.matches, turn.kinds, turn.keys[3], turn.context[1]
    tokens, parents, order = turn.node_token, turn.node_parent, turn.node_order
    votes, probabilities, hashes = turn.node_votes, turn.node_probability, turn.node_hashes
    at, following, first_place, depth, path = work.at, work.following, work.first_place, work.depth, work.path
    weight, best_length, support, frontier = work.weight, work.best_length, work.support, work.frontier
    inputs, newest_place = work.inputs, work.newest_place
    nodes, waiting, handed, current = int64(1), int64(0), int64(0), int64(0)
    tokens[0], parents[0], order[0], depth[0], path[0], first_place[0] = turn.tail[turn.last], -1, -1, 0, 1.0, -1
    places = turn.places
    for c in range(turn.place_count - 1, -1, -1):
        at[c] = places[c]
        following[c] = first_place[0]
        first_place[0] = c
    while handed < budget:
        level = depth[current]
        if level < room:
            ended = False
            for end in ends:
                ended = ended or tokens[current] == end
            first = nodes
            total = float32(1.0)
            voters, longest, newest, newest_node = 0, 0, int64(CANDIDATES), int64(-1)
            c = -1 if ended else first_place[current]
            while c >= 0:
                after, kind = following[c], kinds[c]
                if kind == UNMATCHED and total > _SURE:
                    c = after
                    continue
                place, token = step_on(at[c], kind, context_end, log, contexts)
                if token >= 0:
                    if kind == UNMATCHED:
                        if level == 0:
                            length = matches[c]
                        else:
                            kind, length = EXACT, min(matches[c], 8)
                    else:
                        length = length_class(matches[c] + level)
                    node = _child(token, current, first, nodes, length, c, tokens, turn, work)
                    nodes = max(nodes, node + 1)
                    if node >= 0:
                        vote = weights.odds[kind, length]
                        weight[node] += vote
                        total += vote
                        voters += 1
                        support[node, KINDS] += 1
                        support[node, kind] += 1
                        best_length[node] = max(best_length[node], length)
                        newest_place[node] = min(newest_place[node], c)
                        longest = max(longest, length)
                        if c < newest:
                            newest, newest_node = c, node
                        at[c] = place
                        following[c] = first_place[node]
                        first_place[node] = c
                c = after
            few = min(voters, FEW)
            if total < _SURE and voters <= FEW and path[current] > _WORTH_MORE and not ended:
                row = follow_row(env, tokens[current])
                vote = weights.odds[FOLLOWER, 2 * few + min(level, 1)]
                for i in range(FOLLOWERS):
                    token = log.followers[row, i]
                    if token < 0:
                        break
                    node = _child(token, current, first, nodes, int64(0), newest, tokens, turn, work)
                    nodes = max(nodes, node + 1)
                    if node >= 0:
                        weight[node] += vote
                        total += vote
            log_total, log_path = np.log(total), max(np.log(path[current]), _FAINT)
            for z in range(first, nodes):
                vote = np.log(min(max(weight[z] / (total - weight[z]), float32(1e-4)), float32(2000.0)))
                hashes[z, 0] = _hashed(tokens[z], 1)
                learnt = weights.hashed[0, hashes[z, 0]]
                if support[z, KINDS] == support[z, UNMATCHED]:
                    hashes[z, 1] = -1
                    logit = learnt + weights.scale[0] * vote
                else:
                    mine = min(support[z, KINDS], FEW)
                    hashes[z, 1] = _hashed(tokens[current], 2)
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
                    inputs[z, 8] = (longest - best_length[z]) * float32(1 / 18)
                    inputs[z, 9] = _LOG1P[voters]
                    inputs[z, 10] = 1.0 if z == newest_node else 0.0
                    inputs[z, 11] = _LOG1P[nodes - first]
                    inputs[z, 12] = _LOG1P[newest_place[z] - newest]
                    inputs[z, 13] = learnt
                    inputs[z, 14] = log_path
                    inputs[z, 15] = log_total
                    logit = learnt + weights.scale[0] * vote
                    logit += network(inputs[z], weights.inner, weights.bias, weights.outer)
                chance = float32(1.0) / (float32(1.0) + np.exp(-logit))
                votes[z], probabilities[z] = vote, chance
                path[z] = max(path[current] * chance, _LEAST)
                if path[z] >= floor:
                    waiting = _wait(z, path, frontier, waiting, 1 if chain else budget - handed)
        if waiting == 0:
            break
        current = frontier[waiting - 1]
        waiting = 0 if chain else waiting - 1
        out_tokens[handed], out_parents[handed] = tokens[current], order[parents[current]]
        out_depths[handed], out_paths[handed] = depth[current], path[current]
        order[current] = handed
        handed += 1
    turn.node_count = nodes
    return handed
