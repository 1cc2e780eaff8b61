"""What followed each context: counts of next tokens, linked for pointer chasing.

A context is the last few tokens of a turn; ``START`` stands before its first
token, so a short context that begins with ``START`` is the full prefix of the
turn. Contexts stand on levels, from the narrowest (long, this dialogue state)
to the widest (short, the whole environment). Each edge leads from a context and
a next token to the context that follows; ``back`` leads to the same context one
level wider.

Invariant: the count of an edge is the number of distinct narrower edges that
back off to it; on the narrowest level it is the number of times that the token
was sampled there. (These are the continuation counts of Kneser and Ney, 1995.)
So a token that is known on one level costs nothing on the wider ones, and
``forget`` undoes ``learn`` exactly, in any order.

Contexts and edges are numbers into columns, not objects: a store of a million
small objects would keep Python's garbage collector busy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

START = -1
"""Stands before the first token of a turn."""
NOWHERE = -1
"""``back`` of the widest level."""

Continuation = tuple[float, int, int]
"""Negative probability, token, context that follows."""

_TOKEN_BITS = 32
_BRANCHES = 8
"""Continuations of one context that are considered."""
_NEGLIGIBLE = 0.12
"""Share of the probability below which wider levels are not asked."""


_Opinion = tuple[int, int, tuple[Continuation, ...]]
"""What ``continuations`` found, after how long it holds: the sum of ``changes`` of the context and of the
wider ones that it rests on, above which it is asked anew; and the number of these wider ones. (A plain
tuple of tuples of numbers: the garbage collector forgets about those.)"""
_NONE: _Opinion = (-1, 0, ())


class ContextGraph:
    """The contexts of all levels and the edges between them."""

    def __init__(self, levels: Sequence[tuple[int, float]]) -> None:
        """Make an empty graph.

        Args:
            levels: Context length in tokens and prior (the weight of the next level's opinion, in
                counts) of each level, narrowest first.
        """
        self._orders = [order for order, _ in levels]
        self._priors = [prior for _, prior in levels]
        self._contexts: dict[int, int] = {}
        """Hash of (key, level, last tokens) -> context. A collision would only spoil a hint."""
        self._edges: dict[int, int] = {}
        """Context and next token -> edge."""
        self._free_contexts: list[int] = []
        self._free_edges: list[int] = []
        # one entry a context
        self._key: list[int] = []
        self._level: list[int] = []
        self._back: list[int] = []
        self._total: list[int] = []  # sum of the counts of its edges
        self._changes: list[int] = []  # times that one of these counts changed
        self._ways: list[int] = []  # edges that lead here, and holders of a START; at 0 it goes
        self._out: list[tuple[int, ...]] = []  # its edges
        self._best: list[tuple[int, ...]] = []  # the most frequent ones, where there are many
        self._opinion: list[_Opinion] = []
        # one entry an edge
        self._token: list[int] = []
        self._count: list[int] = []
        self._next: list[int] = []

    def __len__(self) -> int:
        return len(self._contexts)

    def counts(self) -> dict[int, dict[int, int]]:
        """Everything that is counted: hash of a context -> next token -> count. Graphs that know the same
        turns are equal here, however they came to know them."""
        return {
            name: {self._token[edge]: self._count[edge] for edge in self._out[context]}
            for name, context in self._contexts.items()
        }

    def hold(self, keys: Sequence[tuple[int, int]]) -> int:
        """Make sure of the ``START`` contexts of a chain of levels.

        Args:
            keys: Key and level of each link, narrowest first.

        Returns:
            The narrowest ``START``; ``release`` it when its turns are forgotten.
        """
        context = NOWHERE
        for key, level in reversed(keys):
            context = self._reach(key, level, (START,), context)
        return context

    def release(self, start: int) -> None:
        """Give back what ``hold`` returned."""
        while start != NOWHERE:
            self._leave(start, (START,))
            start = self._back[start]

    def learn(self, context: int, tokens: Sequence[int], path: list[int]) -> int:
        """Count ``tokens`` one after the other and return the context that they lead to.

        Args:
            context: Where the turn stands, on the narrowest level.
            tokens: What was said, non-negative, shape (tokens,).
            path: ``START`` and all tokens before; ``tokens`` are appended.
        """
        edges, count, total, changes, following = (
            self._edges,
            self._count,
            self._total,
            self._changes,
            self._next,
        )
        for token in tokens:
            path.append(token)
            edge = edges.get(context << _TOKEN_BITS | token)
            if edge is None:
                context = self._learn_new(context, token, path)
            else:
                count[edge] += 1
                total[context] += 1
                changes[context] += 1
                if self._best[context]:
                    self._promote(context, edge)
                context = following[edge]
        return context

    def forget(self, start: int, tokens: Sequence[int]) -> None:
        """Take back one ``learn`` of a whole turn from its ``START``."""
        path = [START]
        context = start
        for token in tokens:
            path.append(token)
            context = self._forget_one(context, token, path)

    def continuations(self, context: int) -> tuple[Continuation, ...]:
        """What may follow, most probable first.

        ``p(t) = (count(t) + prior * p_wider(t)) / (total + prior)``, from narrow to wide. The answer
        is kept until a count changes among those that it rests on; one that rests on many counts of
        a single context, until an eighth of them has changed.
        """
        back, changes = self._back, self._changes
        while not self._total[context] and back[context] != NOWHERE:
            context = back[context]
        until, wider, found = self._opinion[context]
        now, at = changes[context], context
        for _ in range(wider):
            at = back[at]
            now += changes[at]
        return found if now <= until else self._ask(context)

    def _ask(self, context: int) -> tuple[Continuation, ...]:
        token_of, count, following = self._token, self._count, self._next
        odds: dict[int, float] = {}
        after: dict[int, int] = {}
        at, left, until, wider = context, 1.0, 0, -1
        while at != NOWHERE and left > _NEGLIGIBLE:
            until += self._changes[at]
            wider += 1
            if total := self._total[at]:
                prior = self._priors[self._level[at]]
                share = left / (total + prior)
                left = share * prior
                out: Collection[int] = self._out[at]
                if len(out) > _BRANCHES:
                    out = self._worth_asking(at, odds)
                for edge in out:
                    token = token_of[edge]
                    if token in odds:
                        odds[token] += share * count[edge]
                    else:
                        odds[token] = share * count[edge]
                        after[token] = following[edge]
            at = self._back[at]
        if not wider:
            until += self._total[context] // 8
        found = [(-p, token, after[token]) for token, p in odds.items()]
        if len(found) > 1:
            found.sort()
            del found[_BRANCHES:]
        self._opinion[context] = (until, wider, tuple(found))
        return self._opinion[context][2]

    def _worth_asking(self, context: int, known: Iterable[int]) -> set[int]:
        """Of many edges, the most frequent and those of the tokens that narrower levels know (which this
        level knows too)."""
        known_edges = [self._edges[context << _TOKEN_BITS | token] for token in known]
        return {*self._most_frequent(context), *known_edges}

    def _most_frequent(self, context: int) -> tuple[int, ...]:
        best = self._best[context]
        if not best:
            count, token = self._count, self._token
            ranked = sorted(self._out[context], key=lambda edge: (-count[edge], token[edge]))
            best = self._best[context] = tuple(ranked[:_BRANCHES])
        return best

    def _promote(self, context: int, edge: int) -> None:
        """Let the most frequent edges be found anew if ``edge`` has become one of them."""
        best = self._best[context]
        if edge not in best and self._count[edge] > min([self._count[other] for other in best]):
            self._best[context] = ()

    def _learn_new(self, context: int, token: int, path: list[int]) -> int:
        """``token`` has never followed ``context``: make an edge, and tell the wider level."""
        back = self._back[context]
        wider = NOWHERE
        if back != NOWHERE:
            edge = self._edges.get(back << _TOKEN_BITS | token)
            if edge is None:
                wider = self._learn_new(back, token, path)
            else:
                self._count[edge] += 1
                self._total[back] += 1
                self._changes[back] += 1
                if self._best[back]:
                    self._promote(back, edge)
                wider = self._next[edge]
        level = self._level[context]
        successor = self._reach(self._key[context], level, path[-self._orders[level] :], wider)
        if self._free_edges:
            edge = self._free_edges.pop()
            self._token[edge], self._count[edge], self._next[edge] = token, 1, successor
        else:
            edge = len(self._token)
            self._token.append(token)
            self._count.append(1)
            self._next.append(successor)
        self._edges[context << _TOKEN_BITS | token] = edge
        self._out[context] += (edge,)
        self._total[context] += 1
        self._changes[context] += 1
        return successor

    def _forget_one(self, context: int, token: int, path: list[int]) -> int:
        place = context << _TOKEN_BITS | token
        edge = self._edges[place]
        self._count[edge] -= 1
        self._total[context] -= 1
        self._changes[context] += 1
        self._best[context] = ()
        self._opinion[context] = _NONE
        if not self._count[edge]:
            del self._edges[place]
            self._out[context] = tuple(other for other in self._out[context] if other != edge)
            self._free_edges.append(edge)
            self._leave(self._next[edge], path)
            if self._back[context] != NOWHERE:
                self._forget_one(self._back[context], token, path)
        return self._next[edge]

    def _reach(self, key: int, level: int, tail: Sequence[int], back: int) -> int:
        """The context ``tail``, made if need be, with one more way that leads to it."""
        name = hash((key, level, *tail))
        context = self._contexts.get(name)
        if context is not None:
            self._ways[context] += 1
            return context
        if self._free_contexts:
            context = self._free_contexts.pop()
            self._key[context], self._level[context], self._back[context] = key, level, back
            self._total[context], self._ways[context] = 0, 1
            self._changes[context] += 1
            self._out[context] = self._best[context] = ()
            self._opinion[context] = _NONE
        else:
            context = len(self._key)
            self._key.append(key)
            self._level.append(level)
            self._back.append(back)
            self._total.append(0)
            self._changes.append(0)
            self._ways.append(1)
            self._out.append(())
            self._best.append(())
            self._opinion.append(_NONE)
        self._contexts[name] = context
        return context

    def _leave(self, context: int, path: Sequence[int]) -> None:
        """One way less leads to ``context``, whose tokens end ``path``."""
        self._ways[context] -= 1
        if not self._ways[context]:
            level = self._level[context]
            del self._contexts[hash((self._key[context], level, *path[-self._orders[level] :]))]
            self._free_contexts.append(context)
