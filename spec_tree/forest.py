"""The one public face of the store.

``SpecForest`` keeps what the policy said at each dialogue state and drafts what
it may say next. Live turns are indexed as they grow, so unfinished siblings
profit from each other. All calls take the whole batch.

Invariant: what is drafted from the log are tokens that the policy sampled in
turns that are kept or live; what a turn was asked is used for its own drafts
alone. Drafts are hints: nothing here decides what is emitted.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turntree.spec_tree import batch as kernels
from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.context_ring import ContextRing
from turntree.spec_tree.draft import DraftBatch
from turntree.spec_tree.errors import UnknownTurn
from turntree.spec_tree.growth import scratch
from turntree.spec_tree.layout import START, Allocate, LiveTurns, Weights, live_turns
from turntree.spec_tree.prefix_tree import TreeNode
from turntree.spec_tree.rollouts import Rollouts
from turntree.spec_tree.state import DialogueState
from turntree.spec_tree.stats import ForestStats
from turntree.spec_tree.weights import first_weights

MOST_NODES = 128
"""Nodes of one row at most."""
_FIRST_ROWS = 256


def _zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    return np.zeros(shape, dtype)


class SpecForest:
    """Earlier turns, by dialogue state, as drafts for the next ones.

    Threads may share a forest: calls that change it wait for each other, and ``draft`` waits for nobody.

    Example:
        >>> forest = SpecForest()
        >>> state = DialogueState.from_tokens([1, 2, 3])
        >>> forest.insert(state, [7, 8, 9])
        >>> turn = forest.begin([state])
        >>> forest.draft(turn, max_nodes=2, room=[8]).tokens.tolist()
        [7, 8]
        >>> forest.commit(turn, [[7, 8, 5]])
        >>> forest.end(turn)
        >>> forest.stats().accepted
        2
    """

    def __init__(self, config: ForestConfig | None = None, *, allocate: Allocate = _zeros) -> None:
        """Make an empty forest.

        Args:
            config: Settings; the defaults without it.
            allocate: Makes the arrays; numpy's own memory without it.
        """
        self.config = config or ForestConfig()
        self._allocate = allocate
        self._lock = threading.RLock()
        self._indexer: ThreadPoolExecutor | None = None
        self._ends = np.array(sorted(self.config.end_tokens), np.int32)
        self._weights: Weights = first_weights(allocate)
        self._handles = 0
        self._drafted = self._accepted = self._committed = 0
        self._empty()

    def _empty(self) -> None:
        config = self.config
        self._rollouts = Rollouts(config, self._allocate)
        self._contexts = ContextRing(config.max_context_tokens, config.context_window, self._allocate)
        self._live: LiveTurns = live_turns(_FIRST_ROWS, self._allocate)
        self._free = list(range(_FIRST_ROWS - 1, -1, -1))
        self._rows: dict[int, int] = {}

    def begin(self, states: Sequence[DialogueState], contexts: Sequence[ArrayLike] | None = None) -> list[int]:
        """Start one turn at each state and return their handles.

        Args:
            states: Where the turns begin.
            contexts: Token ids up to each turn, shape (tokens,) each: a turn is also drafted from its own
                context. They are copied, and forgotten with the turn.

        Raises:
            ValueError: If ``contexts`` does not have one entry a state, or holds what is no token id.
        """
        if contexts is not None and len(contexts) != len(states):
            raise ValueError(f"contexts needs one entry a state: expected {len(states)}, got {len(contexts)}")
        asked = None if contexts is None else [_tokens(context, "contexts") for context in contexts]
        with self._lock:
            if len(self._free) < len(states):
                self._more_rows(len(states))
            handles = []
            for i, state in enumerate(states):
                row = self._free.pop()
                self._open(row, state)
                if asked is not None:
                    self._contexts.add(row, asked[i], self._live)
                self._rows[self._handles] = row
                handles.append(self._handles)
                self._handles += 1
            return handles

    def draft(
        self,
        handles: Sequence[int],
        *,
        max_nodes: int,
        room: Sequence[int],
        min_probability: float = 0.0,
        chain: bool = False,
        total_nodes: int | None = None,
    ) -> DraftBatch:
        """Propose continuations of live turns.

        Args:
            handles: Live turns, shape (rows,).
            max_nodes: Nodes a row at most, up to 128.
            room: Greatest depth allowed in each row, shape (rows,).
            min_probability: Nodes whose whole path is estimated to be accepted less often are left out.
            chain: One child a node.
            total_nodes: Nodes of the whole batch at most; the most probable are kept.

        Raises:
            UnknownTurn: If a handle is not live.
            ValueError: If ``room`` does not have one entry a row.
        """
        if len(room) != len(handles):
            raise ValueError(f"room needs one entry a row: expected {len(handles)}, got {len(room)}")
        rows = self._rows_of(handles)
        budget = max(0, min(max_nodes, MOST_NODES))
        shape = (len(rows), budget)
        tokens, parents, depths = np.empty(shape, np.int32), np.empty(shape, np.int32), np.empty(shape, np.int32)
        paths, counts = np.empty(shape, np.float32), np.zeros(len(rows), np.int64)
        live, log, turns = self._live, self._rollouts.store.log, self._rollouts.store.keys
        deepest = np.asarray(room, np.int64) if budget else np.zeros(len(rows), np.int64)
        kernels.draft(
            rows,
            deepest,
            budget,
            float(min_probability),
            chain,
            self._ends,
            live,
            log,
            turns,
            self._contexts.log,
            self._weights,
            scratch(),
            tokens,
            parents,
            depths,
            paths,
            counts,
        )
        used = np.arange(budget) < counts[:, None]
        if total_nodes is not None and counts.sum() > total_nodes:
            used &= _most_probable(paths, used, max(total_nodes, 0))
            counts = used.sum(1)
        live.drafted[rows] = counts
        drafted = int(counts.sum())
        self._drafted += drafted
        return DraftBatch(
            tokens=tokens[used],
            parents=parents[used],
            depths=depths[used],
            probabilities=paths[used],
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
        )

    def commit(self, handles: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Move turns on by the tokens that the policy sampled since the last call, and learn from them.

        Args:
            handles: Live turns, shape (rows,).
            tokens: Accepted draft tokens and the one sampled after them, one sequence a row.

        Raises:
            UnknownTurn: If a handle is not live.
            ValueError: If ``tokens`` does not have one entry a row, or holds what is no token id.
        """
        if len(tokens) != len(handles):
            raise ValueError(f"tokens needs one entry a row: expected {len(handles)}, got {len(tokens)}")
        lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        said = _tokens([token for row in tokens for token in row], "tokens")
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        with self._lock:
            rows = self._rows_of(handles)
            begin = 0
            while begin < len(rows):
                stop = self._rollouts.room_for(lengths, begin, rows, self._live)
                self._accepted += kernels.move_on(
                    rows[begin:stop],
                    said,
                    offsets[begin : stop + 1],
                    self._live,
                    self._rollouts.store.log,
                    self._contexts.log,
                    self._weights,
                    self._rollouts.store.head,
                )
                begin = stop
            self._committed += len(said)

    def end(self, handles: Sequence[int], *, keep: bool = True) -> None:
        """Finish turns.

        Args:
            handles: Live turns, shape (rows,).
            keep: ``False`` for aborted turns: what they added is found no more.

        Raises:
            UnknownTurn: If a handle is not live.
        """
        with self._lock:
            for handle, row in zip(handles, self._rows_of(handles).tolist(), strict=True):
                self._rollouts.close(row, self._live, keep=keep)
                self._live.context[row] = 0
                del self._rows[handle]
                self._free.append(row)

    def insert(self, state: DialogueState, tokens: Sequence[int]) -> None:
        """Add a finished turn, as if it had just been sampled.

        Args:
            state: Where it was said.
            tokens: What was said, shape (tokens,).

        Raises:
            ValueError: If ``tokens`` holds what is no token id.
        """
        said = _tokens(tokens, "tokens")
        with self._lock:
            self._rollouts.add(state, said, self._live)

    def announce(self, states: Sequence[DialogueState]) -> Future[int]:
        """Index what is known at ``states`` in the background: turns will soon begin there.

        Returns:
            When it is done: how many turns were indexed.
        """
        if self._indexer is None:
            self._indexer = ThreadPoolExecutor(1, thread_name_prefix="forest-indexer")
        return self._indexer.submit(self._index, list(states))

    def finished(self, states: Sequence[DialogueState]) -> list[int]:
        """Count the finished turns held at each state."""
        with self._lock:
            return [self._rollouts.finished(state) for state in states]

    def stats(self) -> ForestStats:
        """Count what is held and what was done."""
        with self._lock:
            rollouts = self._rollouts
            return ForestStats(
                states=rollouts.states,
                rollouts=rollouts.count,
                live=len(self._rows),
                tokens=rollouts.tokens,
                cold_tokens=rollouts.cold.tokens,
                bytes=rollouts.store.bytes,
                cold_bytes=rollouts.cold.bytes,
                context_bytes=self._contexts.bytes,
                live_bytes=sum(array.nbytes for array in (*self._live, *self._weights)),
                drafted=self._drafted,
                accepted=self._accepted,
                committed=self._committed,
                evicted_rollouts=rollouts.evicted,
                evicted_states=rollouts.cold.dropped_states,
            )

    def tree(self, state: DialogueState) -> TreeNode:
        """The prefix tree of the turns known at ``state``, live ones included; empty where unknown."""
        with self._lock:
            turns = self._rollouts.known(state)
        return TreeNode.from_turns(turns) if turns else TreeNode(token=START)

    def clear(self) -> None:
        """Forget all turns. Handles of live turns become unknown; counters and what was learnt stay."""
        with self._lock:
            self._empty()

    def _rows_of(self, handles: Sequence[int]) -> NDArray[np.int64]:
        try:
            return np.array([self._rows[handle] for handle in handles], np.int64)
        except KeyError as error:
            raise UnknownTurn(
                f"handle {error.args[0]!r} names no live turn: expected one that begin() returned and "
                "end() has not finished"
            ) from None

    def _open(self, row: int, state: DialogueState) -> None:
        live = self._live
        live.keys[row] = state.ladder()
        live.tail[row, 0] = START
        for column in (live.last, live.length, live.anchor_count, live.place_count, live.node_count, live.drafted):
            column[row] = 0
        live.context[row] = 0
        self._rollouts.open(row, state, live)

    def _more_rows(self, needed: int) -> None:
        """Twice as many rows, or more. Who drafts at this moment goes on with the old ones."""
        old = self._live
        size = len(old.last)
        while size - len(old.last) + len(self._free) < needed:
            size *= 2
        new = live_turns(size, self._allocate)
        for target, source in zip(new, old, strict=True):
            target[: len(source)] = source
        self._free = list(range(size - 1, len(old.last) - 1, -1)) + self._free
        self._live = new

    def _index(self, states: list[DialogueState]) -> int:
        count = 0
        for state in states:
            with self._lock:
                count += self._rollouts.warm(state, self._live)
        return count


def _tokens(values: ArrayLike, what: str) -> NDArray[np.int32]:
    """Token ids as an array."""
    try:
        tokens = np.asarray(values, np.int32) if len(values) else np.zeros(0, np.int32)  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"{what} must be token ids from 0 to 2147483647: {error}") from None
    if tokens.ndim != 1 or (len(tokens) and tokens.min() < 0):
        raise ValueError(f"{what} must be token ids from 0 to 2147483647, got {values!r:.100}")
    return tokens


def _most_probable(paths: NDArray[np.float32], used: NDArray[np.bool_], total: int) -> NDArray[np.bool_]:
    """Which nodes are the ``total`` most probable of the batch; ties leave parents before children."""
    kept = np.zeros(used.shape, bool)
    at = np.flatnonzero(used)
    kept.flat[at[np.argsort(-paths.flat[at], kind="stable")[:total]]] = True
    return kept
