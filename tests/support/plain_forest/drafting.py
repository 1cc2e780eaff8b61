"""Drafts from the graph of contexts: trees, chains, and how much of them came true.

Trees grow best first by the probability of the whole path, which maximises the
expected number of accepted tokens for a given number of nodes. A draft never
changes what is sampled: the verifier decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

import numpy as np

from plain_forest.contexts import ContextGraph, Continuation
from turntree.spec_tree.draft import DraftBatch


class Nodes(NamedTuple):
    """Draft nodes of all rows so far, as growing columns; see ``DraftBatch``."""

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    probabilities: list[float]


def grow_tree(
    graph: ContextGraph,
    context: int,
    nodes: Nodes,
    max_nodes: int,
    room: int,
    floor: float,
    end_tokens: frozenset[int],
) -> None:
    """Append the ``max_nodes`` most probable nodes after ``context``, no deeper than ``room``.

    The heap holds, for each node of the tree, its best child that has not been taken yet.
    """
    if max_nodes < 1 or room < 1:
        return
    tokens, parents, depths, probabilities = nodes
    # (-probability of the path, parent, depth of the parent, rank among its children, children, parent's)
    heap: list[tuple[float, int, int, int, tuple[Continuation, ...], float]] = []
    children = graph.continuations(context)
    if children and -children[0][0] >= floor:
        heap.append((children[0][0], -1, 0, 0, children, 1.0))
    for index in range(max_nodes):
        if not heap:
            return
        cost, parent, depth, rank, children, before = heap[0]
        token, after = children[rank][1:]
        tokens.append(token)
        parents.append(parent)
        depths.append(depth + 1)
        probabilities.append(-cost)
        rank += 1
        if rank < len(children) and -before * children[rank][0] >= floor:
            heapreplace(heap, (before * children[rank][0], parent, depth, rank, children, before))
        else:
            heappop(heap)
        if depth + 1 < room and token not in end_tokens:
            children = graph.continuations(after)
            if children and cost * children[0][0] >= floor:
                heappush(heap, (-cost * children[0][0], index, depth + 1, 0, children, -cost))


def grow_chain(
    graph: ContextGraph,
    context: int,
    nodes: Nodes,
    max_nodes: int,
    room: int,
    floor: float,
    end_tokens: frozenset[int],
) -> None:
    """Append the chain of best children after ``context``, no deeper than ``room``."""
    path = 1.0
    for depth in range(min(max_nodes, room)):
        children = graph.continuations(context)
        if not children:
            return
        cost, token, context = children[0]
        path *= -cost
        if path < floor:
            return
        nodes.tokens.append(token)
        nodes.parents.append(depth - 1)
        nodes.depths.append(depth + 1)
        nodes.probabilities.append(path)
        if token in end_tokens:
            return


def accepted(nodes: Nodes, start: int, stop: int, said: Sequence[int]) -> int:
    """How many tokens of ``said`` lie on one path of the draft ``nodes[start:stop]``."""
    count, parent = 0, -1
    for node, (token, above) in enumerate(zip(nodes.tokens[start:stop], nodes.parents[start:stop], strict=True)):
        if above == parent and count < len(said) and token == said[count]:
            count, parent = count + 1, node
    return count


def most_probable(batch: DraftBatch, total: int) -> DraftBatch:
    """Keep the ``total`` most probable nodes of the batch; ties leave parents before children."""
    kept = np.zeros(len(batch.tokens), bool)
    kept[np.argsort(-batch.probabilities, kind="stable")[: max(total, 0)]] = True
    before = np.concatenate([[0], np.cumsum(kept)])
    rows = np.repeat(np.arange(batch.rows), np.diff(batch.offsets))
    parents = before[np.maximum(batch.parents, 0) + batch.offsets[rows]] - before[batch.offsets[rows]]
    return DraftBatch(
        tokens=batch.tokens[kept],
        parents=np.where(batch.parents < 0, -1, parents)[kept].astype(np.int32),
        depths=batch.depths[kept],
        probabilities=batch.probabilities[kept],
        offsets=before[batch.offsets].astype(np.int64),
    )
