"""Trees and chains out of the places that a turn may go on like.

The places vote for the next token, each with the odds that places of its kind
and agreement have had; what merely followed the last token before has a small
vote too. The tree grows best first by the probability of the whole path, which
maximises the expected number of accepted tokens under a budget of nodes.

A draft never changes what is sampled: the verifier decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.candidates import EXACT, FOLLOWER, UNMATCHED, find_more_places, length_class, step_on
from turntree.spec_tree.kernels.compiled import float32, index, inlined, inlined_fast, int64, kept_part
from turntree.spec_tree.kernels.indexing import follow_row
from turntree.spec_tree.kernels.layout import (
    CANDIDATES,
    FEW,
    FOLLOWERS,
    INPUTS,
    KINDS,
    LINKS,
    NODES,
    TAIL,
    ContextLog,
    TokenLog,
    TurnKeys,
)
from turntree.spec_tree.kernels.look_ahead import TOGETHER
from turntree.spec_tree.kernels.weighing import weigh

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
        ("total", np.float32),
        ("voters", np.int64),
        ("longest", np.int64),
        ("newest", np.int64),
        ("newest_node", np.int64),
        ("again", np.int64),
        ("newest_links", np.int64, (TOGETHER, LINKS)),
        ("at_links", np.int64, (TOGETHER, LINKS)),
        ("before_links", np.int64, (TOGETHER, LINKS)),
    ],
    align=True,
)
"""Room to work in, for one row at a time. Of a place: how far it has been followed, and the next place of the same
node (-1 at the end). Of a node: its first place, depth, the probability of it and all above it, the votes for it, the
first of its places, the longest agreement among them, their number by kind and in all, and what the network sees. Then
the nodes that may be handed out next. Of the node that is looked at: all votes for its children and 1, the places that
voted, their longest agreement, the first of them and the child that it voted for. And the votes for a node up to which
more places are looked up for its children, in the light of the path to it; -1 for never. At last, for several rows
and by kind of links: the newest place, how far the walk has got, and the place before."""
AGAIN_VOTERS = 8
"""Votes for a node up to which that is worth its time."""


def scratch() -> NDArray[np.void]:
    """Room for one thread, of type ``SCRATCH`` and shape (1,)."""
    room = np.zeros(1, SCRATCH)
    room["again"] = AGAIN_VOTERS
    return room


_WORTH_MORE = np.float32(0.1)
"""Path probability from which on tokens that merely followed the last one are thought of."""
_SURE = np.float32(20.0)
"""Votes from which on tokens that no place agrees with are not thought of."""
_AGAIN_PATH = np.float32(0.05)
"""Path probability from which on more places are looked up below the root."""
_LEAST = np.float32(1e-30)
"""Path probability at least."""


@inlined
def _wait(node: int, path: NDArray[np.float32], frontier: NDArray[np.int32], waiting: int, most: int) -> int:
    """Put ``node`` into the line, the likeliest last, unless ``most`` likelier ones wait; returns how many wait."""
    if waiting >= most and path[node] <= path[index(frontier[index(waiting - most)])]:
        return waiting
    at = index(waiting)
    while at > 0 and path[index(frontier[index(at - 1)])] > path[node]:
        frontier[at] = frontier[index(at - 1)]
        at = index(at - 1)
    frontier[at] = node
    return waiting + 1


@inlined
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
    for child in range(first, nodes):
        if tokens[index(child)] == token:
            return index(child)
    if nodes == NODES:
        return int64(-1)
    nodes = index(nodes)
    tokens[nodes], turn.node_parent[nodes], turn.node_order[nodes] = token, parent, -1
    work.depth[nodes], work.first_place[nodes] = work.depth[parent] + 1, -1
    work.weight[nodes], work.best_length[nodes], work.newest_place[nodes] = 0.0, length, place
    for i in range(KINDS + 1):
        work.support[nodes, i] = 0
    return nodes


@inlined_fast
def _ask_places(
    current: int,
    first: int,
    context_end: int,
    turn: Any,
    log: TokenLog,
    contexts: ContextLog,
    weights: Any,
    work: Any,
) -> int:
    """Let the places of ``current`` vote for its children, the nodes from ``first`` on; returns where these end."""
    matches, kinds, tokens, level = turn.matches, turn.kinds, turn.node_token, work.depth[current]
    at, following, first_place = work.at, work.following, work.first_place
    weight, best_length, support, newest_place = work.weight, work.best_length, work.support, work.newest_place
    nodes, total, voters, longest = int64(first), float32(1.0), int64(0), int64(0)
    newest, newest_node, c = int64(CANDIDATES), int64(-1), int64(first_place[current])
    while c >= 0:
        c = index(c)
        after, kind = int64(following[c]), index(kinds[c])
        if kind == UNMATCHED and total > _SURE:
            c = after
            continue
        place, token = step_on(at[c], kind, context_end, log, contexts)
        if token >= 0:
            if kind == UNMATCHED:
                if level == 0:
                    length = index(matches[c])
                else:
                    kind, length = index(EXACT), index(min(matches[c], 8))
            else:
                length = length_class(matches[c] + level)
            node = _child(token, current, first, nodes, length, c, tokens, turn, work)
            nodes = max(nodes, node + 1)
            if node >= 0:
                node = index(node)
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
    work.total, work.voters, work.longest, work.newest, work.newest_node = total, voters, longest, newest, newest_node
    return nodes


@inlined_fast
def _ask_followers(
    current: int, first: int, nodes: int, env: int, turn: Any, log: TokenLog, weights: Any, work: Any
) -> int:
    """Let what followed the token of ``current`` before vote for its children; returns where these end."""
    tokens, total = turn.node_token, work.total
    row = follow_row(env, tokens[current])
    vote = weights.odds[FOLLOWER, 2 * min(work.voters, FEW) + min(work.depth[current], 1)]
    for i in range(FOLLOWERS):
        token = log.followers[row, i]
        if token < 0:
            break
        node = _child(token, current, first, nodes, int64(0), work.newest, tokens, turn, work)
        nodes = max(nodes, node + 1)
        if node >= 0:
            work.weight[node] += vote
            total += vote
    work.total = total
    return nodes


@inlined
def _follow(node: int, first: int, count: int, places: NDArray[np.int32], work: Any) -> int:
    """Let the places ``first:count`` vote for the children of ``node``, before those that do so; returns ``count``."""
    for c in range(count - 1, first - 1, -1):
        work.at[c] = places[c]
        work.following[c] = work.first_place[node]
        work.first_place[node] = c
    return count


@kept_part(fastmath=True)
def grow(
    turn: Any,
    room: int,
    budget: int,
    floor: float,
    chain: bool,
    ends: NDArray[np.int32],
    log: TokenLog,
    turns: TurnKeys,
    contexts: ContextLog,
    weights: Any,
    work: Any,
    start: int,
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
        turns: Of the store.
        contexts: Of the live turns.
        weights: The model, a ``WEIGHTS``.
        work: Room to work in, a ``SCRATCH``.
        start: Where the outputs are filled from.
        out_tokens: The draft's tokens, filled.
        out_parents: Their parents in the draft, -1 at the root, filled.
        out_depths: From 1, filled.
        out_paths: Probabilities of the whole path, filled.

    Returns:
        How many were handed out.
    """
    env, context_end, places = turn.keys[3], turn.context[1], turn.places
    tokens, parents, order, probabilities = turn.node_token, turn.node_parent, turn.node_order, turn.node_probability
    first_place, depth = work.first_place, work.depth
    path, frontier = work.path, work.frontier
    nodes, waiting, handed, current = int64(1), int64(0), int64(0), int64(0)
    tokens[0], parents[0], order[0], depth[0], path[0], first_place[0] = turn.tail[turn.last], -1, -1, 0, 1.0, -1
    found = _follow(int64(0), int64(0), int64(turn.place_count), places, work)
    while handed < budget:
        ended = depth[current] >= room
        for end in ends:
            ended = ended or tokens[current] == end
        if not ended:
            first, level = nodes, int64(depth[current])
            if (
                level > 0
                and work.support[current, KINDS] <= work.again
                and path[current] > _AGAIN_PATH
                and turn.last + level < TAIL
            ):
                more = find_more_places(turn, current, level, found, log, turns, work)
                found = _follow(current, found, more, places, work)
            nodes = _ask_places(current, first, context_end, turn, log, contexts, weights, work)
            if work.total < _SURE and work.voters <= FEW and path[current] > _WORTH_MORE:
                nodes = _ask_followers(current, first, nodes, env, turn, log, weights, work)
            weigh(current, first, nodes, turn, weights, work)
            for child in range(first, nodes):
                z = index(child)
                path[z] = max(path[current] * probabilities[z], _LEAST)
                if path[z] >= floor:
                    waiting = _wait(z, path, frontier, waiting, 1 if chain else budget - handed)
        if waiting == 0:
            break
        current = index(frontier[index(waiting - 1)])
        waiting = 0 if chain else waiting - 1
        at = start + handed
        out_tokens[at], out_parents[at] = tokens[current], order[parents[current]]
        out_depths[at], out_paths[at] = depth[current], path[current]
        order[current] = handed
        handed += 1
    turn.node_count = nodes
    return handed
