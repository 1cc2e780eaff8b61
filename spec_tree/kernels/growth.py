"""Trees and chains, copied from the places where earlier turns agree with a turn.

The places vote for the next token, each with the odds that places of its kind
and agreement have had; a token that merely followed the last one before has a
small vote too. The tree grows best first by the probability of the whole path,
which maximises the expected number of accepted tokens under a budget of nodes.

A draft never changes what is sampled: the verifier decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.candidates import find_more_places, length_class, step_on
from turntree.spec_tree.kernels.compiled import float32, index, inlined, inlined_fast, int64, part
from turntree.spec_tree.kernels.indexing import follow_row
from turntree.spec_tree.kernels.layout import (
    CANDIDATES,
    ENV_KEY,
    EXACT,
    FEW,
    FOLLOWER,
    FOLLOWERS,
    INPUTS,
    KINDS,
    LINKS,
    NODES,
    TAIL,
    UNMATCHED,
    DraftLimits,
    DraftNodes,
    DraftSources,
    TokenLog,
)
from turntree.spec_tree.kernels.look_ahead import TOGETHER
from turntree.spec_tree.kernels.weighing import weigh

SCRATCH = np.dtype(
    [
        # of a place that the draft follows
        ("at", np.int64, CANDIDATES),  # position in the log up to which it has been followed
        ("following", np.int32, CANDIDATES),  # next place of the same node, -1 at the end of the list
        # of a node, the root first
        ("first_place", np.int32, NODES),  # first of the list of places that have led to it, -1 for none
        ("depth", np.int32, NODES),  # tokens from the root on
        ("path", np.float32, NODES),  # probability of it and all nodes above it
        ("weight", np.float32, NODES),  # sum of the votes for it
        ("newest_place", np.int32, NODES),  # lowest number of a place that voted for it: newer places are found first
        ("best_length", np.int32, NODES),  # longest agreement of a place that voted for it, as a class
        ("support", np.int32, (NODES, KINDS + 1)),  # places that voted for it, by kind; in the last column, all
        ("inputs", np.float32, (NODES, INPUTS)),  # what the network sees of it
        # of the draft
        ("frontier", np.int32, NODES),  # nodes that may be handed out next, the likeliest last
        # of the node whose children are voted for
        ("total", np.float32),  # sum of all votes, plus 1
        ("voters", np.int64),  # places that voted
        ("longest", np.int64),  # their longest agreement, as a class
        ("newest", np.int64),  # the lowest of their numbers, ``CANDIDATES`` where there are none
        ("newest_node", np.int64),  # the child that this one voted for, -1 for none
        # of the batch
        ("again", np.int64),  # votes for a node up to which more places are looked up for its children, -1 for never
        # of the rows that are looked ahead for, by kind of links
        ("newest_links", np.int64, (TOGETHER, LINKS)),  # the newest place, -1 for none
        ("at_links", np.int64, (TOGETHER, LINKS)),  # the place that the walk has got to
        ("before_links", np.int64, (TOGETHER, LINKS)),  # the place before that
    ],
    align=True,
)
"""Room to work in: one record for a thread, which drafts for one row at a time."""
AGAIN_VOTERS = 8
"""Votes for a node up to which it is worth its time to look up more places."""
FEW_ROWS = 64
"""Rows up to which more places are looked up below the roots. It takes half of a draft's time for some thousandths of
the tokens: little beside a step of the model, unless the batch is large."""


def scratch() -> NDArray[np.void]:
    """Room for one thread, of type ``SCRATCH`` and shape (1,)."""
    room = np.zeros(1, SCRATCH)
    room["again"] = AGAIN_VOTERS
    return room


_WORTH_MORE = np.float32(0.1)
"""Path probability from which on tokens that merely followed the last one are thought of."""
_SURE = np.float32(20.0)
"""Sum of votes from which on such tokens are not thought of."""
_AGAIN_PATH = np.float32(0.05)
"""Path probability from which on more places are looked up below the root."""
_LEAST = np.float32(1e-30)
"""Path probability at least."""
_LED = 8
"""Agreement, as a class, that an ``UNMATCHED`` place counts with at most once it has led to a node."""


@inlined
def is_end(token: int, ends: NDArray[np.int32]) -> bool:
    """Whether nothing is drafted after ``token``."""
    found = False
    for end in ends:
        found = found or token == end
    return found


@inlined
def _wait(node: int, path: NDArray[np.float32], frontier: NDArray[np.int32], waiting: int, most: int) -> int:
    """Put ``node`` into the line, the likeliest last, unless ``most`` likelier ones wait; returns how many wait."""
    # what lies in front of the last ``most`` is never handed out: the budget ends before
    if waiting >= most and path[node] <= path[index(frontier[index(waiting - most)])]:
        return waiting
    at = index(waiting)
    # of two that are as likely, the newer one is handed out first
    while at > 0 and path[index(frontier[index(at - 1)])] > path[node]:
        frontier[at] = frontier[index(at - 1)]
        at = index(at - 1)
    frontier[at] = node
    return waiting + 1


@inlined
def _child(token: int, parent: int, first: int, nodes: int, turn: Any, work: Any) -> int:
    """The child of ``parent`` with ``token``, made where it is new; -1 where there is no room.

    The children so far are the nodes ``first:nodes``.
    """
    tokens = turn.node_token
    for child in range(first, nodes):
        if tokens[index(child)] == token:
            return index(child)
    if nodes == NODES:
        return int64(-1)
    nodes = index(nodes)
    tokens[nodes], turn.node_parent[nodes], turn.node_order[nodes] = token, parent, -1
    work.depth[nodes], work.first_place[nodes] = work.depth[parent] + 1, -1
    work.weight[nodes], work.best_length[nodes], work.newest_place[nodes] = 0.0, 0, CANDIDATES
    for i in range(KINDS + 1):
        work.support[nodes, i] = 0
    return nodes


@inlined_fast
def _ask_places(current: int, first: int, turn: Any, sources: DraftSources, weights: Any, work: Any) -> int:
    """Let the places of ``current`` vote for its children, the nodes from ``first`` on; returns where these end."""
    matches, kinds, context_end = turn.matches, turn.kinds, turn.context[1]
    log, level = sources.log, work.depth[current]
    at, following, first_place = work.at, work.following, work.first_place
    weight, best_length, support, newest_place = work.weight, work.best_length, work.support, work.newest_place
    nodes, total, voters, longest = int64(first), float32(1.0), int64(0), int64(0)
    newest, newest_node, c = int64(CANDIDATES), int64(-1), int64(first_place[current])
    while c >= 0:
        c = index(c)
        # a place goes over into its child's list below, so the next one of this list is read before
        after, kind = int64(following[c]), index(kinds[c])
        if kind == UNMATCHED and total > _SURE:
            c = after
            continue
        place, token = step_on(at[c], kind, context_end, log, sources.contexts)
        if token >= 0:
            if kind != UNMATCHED:
                length = length_class(matches[c] + level)
            elif level == 0:
                length = index(matches[c])
            else:  # it has led here, so it does agree, though with little
                kind, length = index(EXACT), index(min(matches[c], _LED))
            node = _child(token, current, first, nodes, turn, work)
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
def _ask_followers(current: int, first: int, nodes: int, turn: Any, log: TokenLog, weights: Any, work: Any) -> int:
    """Let what followed the token of ``current`` before vote for its children; returns where these end."""
    total, row = work.total, follow_row(turn.keys[ENV_KEY], turn.node_token[current])
    vote = weights.odds[FOLLOWER, 2 * min(work.voters, FEW) + min(work.depth[current], 1)]
    for i in range(FOLLOWERS):
        token = log.followers[row, i]
        if token < 0:
            break
        node = _child(token, current, first, nodes, turn, work)
        if node == nodes:  # no place votes for a new one: it counts as old as the newest of them
            work.newest_place[node] = work.newest
        nodes = max(nodes, node + 1)
        if node >= 0:
            work.weight[node] += vote
            total += vote
    work.total = total
    return nodes


@inlined
def _follow(node: int, first: int, count: int, turn: Any, work: Any) -> int:
    """Let the places ``first:count`` vote for the children of ``node``, before those that do so; returns ``count``."""
    for c in range(count - 1, first - 1, -1):  # from the last on, so that the list begins with the first
        work.at[c] = turn.places[c]
        work.following[c] = work.first_place[node]
        work.first_place[node] = c
    return count


@inlined
def _plant(turn: Any, work: Any) -> int:
    """Make the newest token of a turn the root, which all its places have led to; returns their number."""
    turn.node_token[0], turn.node_parent[0], turn.node_order[0] = turn.tail[turn.last], -1, -1
    work.depth[0], work.path[0], work.first_place[0] = 0, 1.0, -1
    return _follow(int64(0), int64(0), int64(turn.place_count), turn, work)


@inlined
def _is_lonely(node: int, turn: Any, work: Any) -> bool:
    """Whether more places are looked up for the children of ``node``: few have led to it, though it is likely."""
    return (
        work.depth[node] > 0
        and work.support[node, KINDS] <= work.again
        and work.path[node] > _AGAIN_PATH
        and turn.last + work.depth[node] < TAIL  # the path must find room behind the tail
    )


@inlined
def _hand_out(node: int, number: int, turn: Any, work: Any, out: DraftNodes) -> None:
    """Write ``node`` as number ``number`` of a draft; its parent is written already."""
    out.tokens[number], out.parents[number] = turn.node_token[node], turn.node_order[turn.node_parent[node]]
    out.depths[number], out.paths[number] = work.depth[node], work.path[node]
    turn.node_order[node] = number


@part(fastmath=True)
def grow(
    turn: Any, room: int, limits: DraftLimits, sources: DraftSources, weights: Any, work: Any, out: DraftNodes
) -> int:
    """Weigh nodes after the newest token of a turn, the root, and hand out the most probable ones.

    Args:
        turn: A ``LIVE_TURN`` with its places; its nodes are filled.
        weights: The model, a ``WEIGHTS``.
        work: Room to work in, a ``SCRATCH``.
        out: Nodes of the draft, filled from the first on.

    Returns:
        How many were handed out.
    """
    path, frontier, budget = work.path, work.frontier, limits.budget
    nodes, waiting, handed, current = int64(1), int64(0), int64(0), int64(0)
    found = _plant(turn, work)
    while handed < budget:
        if work.depth[current] < room and not is_end(turn.node_token[current], limits.ends):
            first = nodes
            if _is_lonely(current, turn, work):
                more = find_more_places(turn, current, int64(work.depth[current]), found, sources, work)
                found = _follow(current, found, more, turn, work)
            nodes = _ask_places(current, first, turn, sources, weights, work)
            if work.total < _SURE and work.voters <= FEW and path[current] > _WORTH_MORE:
                nodes = _ask_followers(current, first, nodes, turn, sources.log, weights, work)
            weigh(current, first, nodes, turn, weights, work)
            for child in range(first, nodes):
                z = index(child)
                # never 0, whose logarithm the network cannot take as input
                path[z] = max(path[current] * turn.node_probability[z], _LEAST)
                if path[z] >= limits.floor:
                    waiting = _wait(z, path, frontier, waiting, 1 if limits.chain else budget - handed)
        if waiting == 0:
            break
        current = index(frontier[index(waiting - 1)])
        waiting = 0 if limits.chain else waiting - 1  # a chain does not come back to a node's other children
        _hand_out(current, handed, turn, work, out)
        handed += 1
    turn.node_count = nodes
    return handed
