"""Grow draft trees and chains from candidates.

A candidate is a position in a stored turn. Every candidate votes for the token that follows it, weighted by the odds
of its kind and match length. Followers (tokens that came after the last token elsewhere) get a small vote. The tree
grows best first by path probability, which maximises the expected number of accepted tokens under a node budget.
A draft cannot change what is sampled: the verifier decides.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.candidates import find_more_candidates, length_class, next_position
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
from turntree.spec_tree.kernels.prefetch import PREFETCHED_ROWS
from turntree.spec_tree.kernels.weighing import weigh

#: working memory of one thread, which drafts for one row at a time
SCRATCH = np.dtype(
    [
        # per candidate that the draft follows
        ("at", np.int64, CANDIDATES),  # position in the log up to which it has been followed
        ("following", np.int32, CANDIDATES),  # next candidate of the same node, -1 at the end of the list
        # per node, the root first
        ("first_candidate", np.int32, NODES),  # head of the list of candidates that led to it, -1 for none
        ("depth", np.int32, NODES),  # tokens from the root on
        ("path", np.float32, NODES),  # probability of the path from the root to the node
        ("weight", np.float32, NODES),  # sum of the votes for it
        ("newest_candidate", np.int32, NODES),  # lowest index (newest) of the candidates that voted for it
        ("best_length", np.int32, NODES),  # longest agreement of a candidate that voted for it, as a class
        ("support", np.int32, (NODES, KINDS + 1)),  # candidates that voted for it, by kind; last column: total
        ("inputs", np.float32, (NODES, INPUTS)),  # inputs of the network
        # per draft
        ("frontier", np.int32, NODES),  # nodes that may be proposed next, the likeliest last
        # of the node whose children get votes at present
        ("total", np.float32),  # sum of all votes, plus 1
        ("voters", np.int64),  # candidates that voted
        ("longest", np.int64),  # longest agreement of a voting candidate, as a class
        ("newest", np.int64),  # lowest index of a voting candidate, ``CANDIDATES`` if none voted
        ("newest_node", np.int64),  # child that the newest candidate voted for, -1 for none
        # of the whole batch
        ("again", np.int64),  # maximum votes of a node that looks up more candidates, -1: no node does
        # per prefetched row and kind of links
        ("newest_links", np.int64, (PREFETCHED_ROWS, LINKS)),  # the newest position, -1 for none
        ("at_links", np.int64, (PREFETCHED_ROWS, LINKS)),  # position that the walk has reached
        ("before_links", np.int64, (PREFETCHED_ROWS, LINKS)),  # position of the step before
    ],
    align=True,
)
AGAIN_VOTERS = 8  #: nodes with at most this many votes look up more candidates
#: largest batch in which ``proposal`` looks up candidates below the roots. The lookups take half of the drafting time
#: for a few thousandths of the tokens, which pays only if drafting is short relative to the model's step
FEW_ROWS = 64


def scratch() -> NDArray[np.void]:
    record = np.zeros(1, SCRATCH)
    record["again"] = AGAIN_VOTERS
    return record


_WORTH_MORE = np.float32(0.1)  #: minimum path probability of a node at which followers vote, too
_SURE = np.float32(20.0)  #: followers do not vote if the candidates' votes add up to this
_AGAIN_PATH = np.float32(0.05)  #: path probability above which a node may look up more candidates
_LEAST = np.float32(1e-30)  #: lower bound of a path probability, since the network takes its logarithm
_LED = 8  #: maximum length class of an ``UNMATCHED`` candidate after it has predicted a token


@inlined
def ends_turn(token: int, ends: NDArray[np.int32]) -> bool:
    found = False
    for end in ends:
        found = found or token == end
    return found


@inlined
def _queue(node: int, path: NDArray[np.float32], frontier: NDArray[np.int32], waiting: int, most: int) -> int:
    # Only the likeliest ``most`` nodes can still be proposed before the budget ends.
    if waiting >= most and path[node] <= path[index(frontier[index(waiting - most)])]:
        return waiting
    at = index(waiting)
    # Insertion sort, likeliest last; of equally likely nodes, the newer node is proposed first.
    while at > 0 and path[index(frontier[index(at - 1)])] > path[node]:
        frontier[at] = frontier[index(at - 1)]
        at = index(at - 1)
    frontier[at] = node
    return waiting + 1


@inlined
def _child(token: int, parent: int, first: int, nodes: int, turn: Any, work: Any) -> int:
    tokens = turn.node_token
    for child in range(first, nodes):
        if tokens[index(child)] == token:
            return index(child)
    if nodes == NODES:
        return int64(-1)
    nodes = index(nodes)
    tokens[nodes], turn.node_parent[nodes], turn.node_order[nodes] = token, parent, -1
    work.depth[nodes], work.first_candidate[nodes] = work.depth[parent] + 1, -1
    work.weight[nodes], work.best_length[nodes], work.newest_candidate[nodes] = 0.0, 0, CANDIDATES
    for i in range(KINDS + 1):
        work.support[nodes, i] = 0
    return nodes


@inlined_fast
def _vote_candidates(current: int, first: int, turn: Any, sources: DraftSources, weights: Any, work: Any) -> int:
    matches, kinds, context_end = turn.matches, turn.kinds, turn.context[1]
    log, level = sources.log, work.depth[current]
    at, following, first_candidate = work.at, work.following, work.first_candidate
    weight, best_length, support, newest_candidate = work.weight, work.best_length, work.support, work.newest_candidate
    nodes, total, voters, longest = int64(first), float32(1.0), int64(0), int64(0)
    newest, newest_node, c = int64(CANDIDATES), int64(-1), int64(first_candidate[current])
    while c >= 0:
        c = index(c)
        # The candidate moves to its child's list below, so read its successor in this list first.
        after, kind = int64(following[c]), index(kinds[c])
        if kind == UNMATCHED and total > _SURE:
            c = after
            continue
        position, token = next_position(at[c], kind, context_end, log, sources.contexts)
        if token >= 0:
            if kind != UNMATCHED:
                length = length_class(matches[c] + level)
            elif level == 0:
                length = index(matches[c])
            else:  # the candidate predicted this path, so by now it agrees, though only over few tokens
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
                newest_candidate[node] = min(newest_candidate[node], c)
                longest = max(longest, length)
                if c < newest:
                    newest, newest_node = c, node
                at[c] = position
                following[c] = first_candidate[node]
                first_candidate[node] = c
        c = after
    work.total, work.voters, work.longest, work.newest, work.newest_node = total, voters, longest, newest, newest_node
    return nodes


@inlined_fast
def _vote_followers(current: int, first: int, nodes: int, turn: Any, log: TokenLog, weights: Any, work: Any) -> int:
    total, row = work.total, follow_row(turn.keys[ENV_KEY], turn.node_token[current])
    vote = weights.odds[FOLLOWER, 2 * min(work.voters, FEW) + min(work.depth[current], 1)]
    for i in range(FOLLOWERS):
        token = log.followers[row, i]
        if token < 0:
            break
        node = _child(token, current, first, nodes, turn, work)
        if node == nodes:  # a node without candidates counts as old as the newest candidate
            work.newest_candidate[node] = work.newest
        nodes = max(nodes, node + 1)
        if node >= 0:
            work.weight[node] += vote
            total += vote
    work.total = total
    return nodes


@inlined
def _list_candidates(node: int, first: int, count: int, turn: Any, work: Any) -> int:
    for c in range(count - 1, first - 1, -1):  # prepend in reverse, so that the list begins with the newest
        work.at[c] = turn.candidates[c]
        work.following[c] = work.first_candidate[node]
        work.first_candidate[node] = c
    return count


@inlined
def _start_root(turn: Any, work: Any) -> int:
    turn.node_token[0], turn.node_parent[0], turn.node_order[0] = turn.tail[turn.last], -1, -1
    work.depth[0], work.path[0], work.first_candidate[0] = 0, 1.0, -1
    return _list_candidates(int64(0), int64(0), int64(turn.candidate_count), turn, work)


@inlined
def _needs_lookup(node: int, turn: Any, work: Any) -> bool:
    return (
        work.depth[node] > 0
        and work.support[node, KINDS] <= work.again
        and work.path[node] > _AGAIN_PATH
        and turn.last + work.depth[node] < TAIL  # the lookup writes the path after the tail
    )


@inlined
def _write_node(node: int, number: int, turn: Any, work: Any, out: DraftNodes) -> None:
    out.tokens[number], out.parents[number] = turn.node_token[node], turn.node_order[turn.node_parent[node]]
    out.depths[number], out.paths[number] = work.depth[node], work.path[node]
    turn.node_order[node] = number


@part(fastmath=True)
def grow(
    turn: Any, max_depth: int, limits: DraftLimits, sources: DraftSources, weights: Any, work: Any, out: DraftNodes
) -> int:
    """Weigh nodes below the turn's newest token (the root), write the likeliest into ``out``, return their number."""
    path, frontier, budget = work.path, work.frontier, limits.budget
    nodes, waiting, proposed, current = int64(1), int64(0), int64(0), int64(0)
    found = _start_root(turn, work)
    # Best first: expand the likeliest waiting node, queue its children, propose the next likeliest.
    while proposed < budget:
        if work.depth[current] < max_depth and not ends_turn(turn.node_token[current], limits.ends):
            first = nodes
            if _needs_lookup(current, turn, work):
                more = find_more_candidates(turn, current, int64(work.depth[current]), found, sources, work)
                found = _list_candidates(current, found, more, turn, work)
            nodes = _vote_candidates(current, first, turn, sources, weights, work)
            if work.total < _SURE and work.voters <= FEW and path[current] > _WORTH_MORE:
                nodes = _vote_followers(current, first, nodes, turn, sources.log, weights, work)
            weigh(current, first, nodes, turn, weights, work)
            for child in range(first, nodes):
                z = index(child)
                # Never 0: the network takes the logarithm.
                path[z] = max(path[current] * turn.node_probability[z], _LEAST)
                if path[z] >= limits.floor:
                    waiting = _queue(z, path, frontier, waiting, 1 if limits.chain else budget - proposed)
        if waiting == 0:
            break
        current = index(frontier[index(waiting - 1)])
        waiting = 0 if limits.chain else waiting - 1  # a chain never returns to a node's other children
        _write_node(current, proposed, turn, work, out)
        proposed += 1
    turn.node_count = nodes
    return proposed
