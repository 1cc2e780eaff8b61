"""A plain store in pure Python: the oracle that the store is held against.

It keeps turns in lists and counts what followed each context in dictionaries, where the store links what was said, so
the two share no code but the form of a draft. A context is the last tokens of a turn, ``START`` before its first, so
one that begins with ``START`` is a whole prefix.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

from turntree.spec_tree import DialogueState, DraftBatch

START = -1
EXACT, TOOLS, TASK, ENV = range(4)
"""Rungs of ``DialogueState.backoff_states()``."""
BACKING_OFF = ((EXACT, 8), (EXACT, 3), (EXACT, 1), (ENV, 3), (ENV, 1))
"""Contexts that are asked one after another until one is known: rung and length in tokens."""
PREFIX_ONLY = ((EXACT, 1024),)
"""What the same state has said after the whole prefix, and nothing else."""


@dataclass(slots=True)
class _Turn:
    state: DialogueState
    path: list[int] = field(default_factory=lambda: [START])


class PlainForest:
    """Earlier turns as drafts for the next ones, with the calls of a ``SpecForest``."""

    def __init__(
        self, *, quota: int = 32, ends: frozenset[int] = frozenset(), levels: Sequence[tuple[int, int]] = BACKING_OFF
    ) -> None:
        """Keep the newest ``quota`` finished turns of each state; draft nothing after ``ends``."""
        self.quota, self.ends, self.levels = quota, ends, tuple(levels)
        self.kept: defaultdict[int, deque[tuple[int, ...]]] = defaultdict(deque)
        """Finished turns by state, oldest first."""
        self.live: dict[int, _Turn] = {}
        self.committed = self.evicted = self._handles = 0
        self._following: defaultdict[int, Counter[int]] = defaultdict(Counter)
        """Hash of a rung's key and a context -> how often each token followed."""

    def begin(self, states: Sequence[DialogueState]) -> list[int]:
        handles = list(range(self._handles, self._handles + len(states)))
        self._handles += len(states)
        self.live.update(zip(handles, map(_Turn, states), strict=True))
        return handles

    def commit(self, handles: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        for handle, said in zip(handles, tokens, strict=True):
            turn = self.live[handle]
            turn.path += said
            self._count(turn.state, turn.path, len(turn.path) - len(said), 1)
            self.committed += len(said)

    def end(self, handles: Sequence[int], *, keep: bool = True) -> None:
        for handle in handles:
            turn = self.live.pop(handle)
            if keep and len(turn.path) > 1:
                self._keep(turn)
            else:
                self._count(turn.state, turn.path, 1, -1)

    def insert(self, state: DialogueState, tokens: Sequence[int]) -> None:
        if tokens:
            turn = _Turn(state, [START, *tokens])
            self._count(state, turn.path, 1, 1)
            self._keep(turn)

    def turns(self, state: DialogueState) -> Counter[tuple[int, ...]]:
        """What was said at ``state``, by turns that are kept and by live ones."""
        live = [tuple(turn.path[1:]) for turn in self.live.values() if turn.state == state and len(turn.path) > 1]
        return Counter([*self.kept[state.exact], *live])

    def held(self) -> dict[str, int]:
        """What ``ForestStats`` says of a store that was told the same."""
        finished = [turn for turns in self.kept.values() for turn in turns]
        known = {exact for exact, turns in self.kept.items() if turns}
        return {
            "states": len(known | {turn.state.exact for turn in self.live.values()}),
            "rollouts": len(finished),
            "live": len(self.live),
            "tokens": sum(map(len, finished)),
            "committed": self.committed,
            "evicted_rollouts": self.evicted,
            "evicted_states": 0,
        }

    def draft(
        self, handles: Sequence[int], *, max_nodes: int, max_depths: Sequence[int], chain: bool = False
    ) -> DraftBatch:
        """The likeliest continuations of live turns, as trees or as chains; see ``SpecForest.draft``."""
        rows = [self._grow(self.live[h], max_nodes, deep, chain) for h, deep in zip(handles, max_depths, strict=True)]
        tokens, parents, depths, chances = np.array([node for row in rows for node in row]).reshape(-1, 4).T
        return DraftBatch(
            tokens=tokens.astype(np.int32),
            parents=parents.astype(np.int32),
            depths=depths.astype(np.int32),
            probabilities=chances.astype(np.float32),
            offsets=np.cumsum([0, *map(len, rows)]),
        )

    def _grow(self, turn: _Turn, most: int, room: int, chain: bool) -> list[tuple[int, int, int, float]]:
        """Token, parent, depth and probability of the ``most`` likeliest nodes, best first."""
        nodes: list[tuple[int, int, int, float]] = []
        open_: list[tuple[float, int, int, tuple[int, ...]]] = []
        longest = max(order for _, order in self.levels)

        def look(parent: int, depth: int, chance: float, path: tuple[int, ...]) -> None:
            if depth < room and path[-1] not in self.ends:
                following = self._after(turn.state, path)
                for token, count in following.most_common(1 if chain else None):
                    share = chance * count / following.total()
                    heappush(open_, (-share, parent, depth + 1, (*path, token)[-longest:]))

        look(-1, 0, 1.0, tuple(turn.path[-longest:]))
        while open_ and len(nodes) < most:
            cost, parent, depth, path = heappop(open_)
            nodes.append((path[-1], parent, depth, -cost))
            look(len(nodes) - 1, depth, -cost, path)
        return nodes

    def _after(self, state: DialogueState, path: Sequence[int]) -> Counter[int]:
        """What followed ``path`` on the first level that knows something."""
        keys = state.backoff_states()
        names = (hash((keys[rung], order, *path[-order:])) for rung, order in self.levels)
        return next((self._following[name] for name in names if self._following.get(name)), Counter())

    def _count(self, state: DialogueState, path: Sequence[int], begin: int, times: int) -> None:
        """Tokens of ``path`` from ``begin`` on were said ``times`` more often."""
        keys = state.backoff_states()
        for at in range(begin, len(path)):
            for rung, order in self.levels:
                following = self._following[hash((keys[rung], order, *path[max(0, at - order) : at]))]
                following[path[at]] += times
                if not following[path[at]]:
                    del following[path[at]]

    def _keep(self, turn: _Turn) -> None:
        kept = self.kept[turn.state.exact]
        kept.append(tuple(turn.path[1:]))
        if len(kept) > self.quota:
            self._count(turn.state, [START, *kept.popleft()], 1, -1)
            self.evicted += 1
