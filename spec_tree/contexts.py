"""What followed each context: counts of next tokens, linked for pointer chasing.

A context is the last few tokens of a turn; ``START`` stands before its first
token, so a short context that begins with ``START`` is the full prefix of the
turn. Contexts live on levels, from the narrowest (long, this dialogue state) to
the widest (short, the whole environment). Each node links to its successor for
every next token and to the same context one level wider, its ``back``.

Invariant: the count of a token at a node is the number of distinct nodes that
back off to it and know the token; on the narrowest level it is the number of
times that the token was sampled there. (These are the continuation counts of
Kneser and Ney, 1995.) So a token that is known on one level costs nothing on
the wider ones, and ``forget`` undoes ``learn`` exactly, in any order.
"""

from __future__ import annotations

START = -1
"""Stands before the first token of a turn."""


class Level:
    """The contexts of one length under one key."""

    __slots__ = ("nodes", "order", "prior")

    def __init__(self, order: int, prior: float) -> None:
        self.order = order
        """Tokens in a context at most."""
        self.prior = prior
        """Weight of the wider level's opinion, in counts."""
        self.nodes: dict[tuple[int, ...], Node] = {}
        """Contexts that are reached by a known token, and ``START``."""

    def start(self, back: Node | None) -> Node:
        """The node before the first token; it stays while the caller holds it (see ``Node.ways``)."""
        node = self.nodes.get((START,))
        if node is None:
            node = self.nodes[START,] = Node(self, (START,), back)
        node.ways += 1
        return node


class Edge:
    """One known next token."""

    __slots__ = ("count", "node")

    def __init__(self, node: Node) -> None:
        self.count = 1
        """How often it followed; never 0."""
        self.node = node
        """The context that it leads to, on the same level."""


class Node:
    """One context."""

    __slots__ = ("back", "context", "edges", "level", "total", "ways")

    def __init__(self, level: Level, context: tuple[int, ...], back: Node | None) -> None:
        self.level = level
        self.context = context
        """Its last tokens, at most ``level.order``."""
        self.back = back
        """The same context one level wider."""
        self.edges: dict[int, Edge] = {}
        """Next token -> edge."""
        self.total = 0
        """Sum of the edges' counts."""
        self.ways = 0
        """Edges that lead here, plus holders of a ``START`` node; at 0 the node leaves its level."""

    def learn(self, token: int) -> Node:
        """Count ``token`` after this context and return the context that follows."""
        self.total += 1
        edge = self.edges.get(token)
        if edge is not None:
            edge.count += 1
            return edge.node
        wider = None if self.back is None else self.back.learn(token)
        level = self.level
        context = (*self.context, token)[-level.order :]
        successor = level.nodes.get(context)
        if successor is None:
            successor = level.nodes[context] = Node(level, context, wider)
        successor.ways += 1
        self.edges[token] = Edge(successor)
        return successor

    def forget(self, token: int) -> Node:
        """Take back one ``learn(token)`` and return the context that followed."""
        self.total -= 1
        edge = self.edges[token]
        edge.count -= 1
        if edge.count == 0:
            del self.edges[token]
            edge.node.release()
            if self.back is not None:
                self.back.forget(token)
        return edge.node

    def release(self) -> None:
        """One way less leads here."""
        self.ways -= 1
        if self.ways == 0:
            del self.level.nodes[self.context]
