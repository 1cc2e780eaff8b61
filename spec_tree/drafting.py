"""From counts to drafts: what the policy may say after a context.

The probability of a token blends the levels from narrow to wide: at a context
seen ``total`` times, ``p(t) = (count(t) + prior * p_wider(t)) / (total + prior)``.
Trees grow best first by the probability of the whole path, which maximises the
expected number of accepted tokens for a given number of nodes. A draft never
changes what is sampled: the verifier decides.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from turntree.spec_tree.contexts import Node


class Nodes(NamedTuple):
    """Draft nodes of all rows so far, as growing columns."""

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    probabilities: list[float]


_NEGLIGIBLE = 0.05
"""Share of the probability below which wider levels are not asked."""


def continuations(node: Node) -> dict[int, tuple[float, Node]]:
    """Known next tokens with their probability and the narrowest context that each leads to."""
    found: dict[int, tuple[float, Node]] = {}
    left = 1.0
    at: Node | None = node
    while at is not None and left > _NEGLIGIBLE:
        if at.total:
            share = left / (at.total + at.level.prior)
            for token, edge in at.edges.items():
                known = found.get(token)
                if known is None:
                    found[token] = (share * edge.count, edge.node)
                else:
                    found[token] = (known[0] + share * edge.count, known[1])
            left = share * at.level.prior
        at = at.back
    return found


def grow_tree(
    node: Node, out: Nodes, *, max_nodes: int, room: int, floor: float, end_tokens: frozenset[int]
) -> None:
    """Append the most probable ``max_nodes`` nodes after ``node`` to ``out``, parents first."""
    if max_nodes < 1 or room < 1:
        return
    heap: list[tuple[float, int, int, int, Node]] = []
    for token, (p, successor) in continuations(node).items():
        if p >= floor:
            heappush(heap, (-p, 1, token, -1, successor))
    for index in range(max_nodes):
        if not heap:
            return
        negative, depth, token, parent, successor = heappop(heap)
        out.tokens.append(token)
        out.parents.append(parent)
        out.depths.append(depth)
        out.probabilities.append(-negative)
        if depth < room and token not in end_tokens:
            for next_token, (p, following) in continuations(successor).items():
                if -negative * p >= floor:
                    heappush(heap, (negative * p, depth + 1, next_token, index, following))


def grow_chain(
    node: Node, out: Nodes, *, max_nodes: int, room: int, floor: float, end_tokens: frozenset[int]
) -> None:
    """Append the chain of best children after ``node`` to ``out``."""
    path = 1.0
    for index in range(min(max_nodes, room)):
        best = max(((p, -token, after) for token, (p, after) in continuations(node).items()), default=None)
        if best is None or path * best[0] < floor:
            return
        path *= best[0]
        token, node = -best[1], best[2]
        out.tokens.append(token)
        out.parents.append(index - 1)
        out.depths.append(index + 1)
        out.probabilities.append(path)
        if token in end_tokens:
            return
