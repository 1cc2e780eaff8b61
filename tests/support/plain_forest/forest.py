"""The public face of the plain store.

``PlainForest`` keeps what the policy said at each dialogue state and drafts what
it may say next. Live turns are indexed as they grow, so unfinished siblings
profit from each other. All calls take the whole batch.

Invariant: what the store knows is exactly the finished turns that it keeps and
the live turns so far; leaving out a turn (quota, memory, an aborted turn) takes
its counts back. Drafts are hints: nothing here decides what is emitted.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from plain_forest.config import RUNGS, PlainConfig
from plain_forest.contexts import START, ContextGraph
from plain_forest.drafting import Nodes, accepted, grow_chain, grow_tree, most_probable
from turntree.spec_tree import DialogueState, DraftBatch, TreeNode, UnknownTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainStats:
    """What a plain forest holds and has done; see ``ForestStats``."""

    states: int
    rollouts: int
    live: int
    tokens: int
    contexts: int
    """Contexts that are counted."""
    drafted: int
    accepted: int
    committed: int
    evicted_rollouts: int
    evicted_states: int


class _State:
    """A dialogue state: the context where its turns start, and the finished ones that are kept."""

    __slots__ = ("key", "live", "rollouts", "start")

    def __init__(self, key: int, start: int) -> None:
        self.key = key
        self.start = start
        self.live = 0
        self.rollouts: deque[array[int]] = deque()


class _Turn:
    """A live turn: where it stands, its path from ``START``, and the draft that awaits its verdict."""

    __slots__ = ("context", "draft", "path", "state")

    def __init__(self, state: _State) -> None:
        self.state = state
        self.context = state.start
        self.path = [START]
        self.draft: tuple[Nodes, int, int] | None = None
        """Columns of the last batch, and which of their entries are this turn's."""

    @property
    def tokens(self) -> array[int]:
        return array("i", self.path[1:])


class PlainForest:
    """Earlier turns, by dialogue state, as drafts for the next ones. Safe to share between threads."""

    def __init__(self, config: PlainConfig | None = None) -> None:
        """Make an empty forest; without ``config``, with the defaults."""
        self.config = config or PlainConfig()
        self._lock = threading.Lock()
        self._handles = 0
        self._drafted = self._accepted = self._committed = 0
        self._evicted_rollouts = self._evicted_states = 0
        self._empty()

    def _empty(self) -> None:
        self._graph = ContextGraph([(length, prior) for _, length, prior in self.config.levels])
        self._states: OrderedDict[int, _State] = OrderedDict()  # least recently used first
        self._turns: dict[int, _Turn] = {}
        self._tokens = 0

    def begin(self, states: Sequence[DialogueState]) -> list[int]:
        """Start one turn at each state and return their handles."""
        with self._lock:
            handles = []
            for state in states:
                held = self._hold(state)
                held.live += 1
                self._turns[self._handles] = _Turn(held)
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
            max_nodes: Nodes a row at most.
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
        grow = grow_chain if chain else grow_tree
        end_tokens = self.config.end_tokens
        with self._lock:
            turns = self._live(handles)
            nodes = Nodes([], [], [], [])
            offsets = [0]
            for turn, depth in zip(turns, room, strict=True):
                if turn.path[-1] not in end_tokens:
                    grow(self._graph, turn.context, nodes, max_nodes, depth, min_probability, end_tokens)
                offsets.append(len(nodes.tokens))
            batch = DraftBatch(
                tokens=np.array(nodes.tokens, np.int32),
                parents=np.array(nodes.parents, np.int32),
                depths=np.array(nodes.depths, np.int32),
                probabilities=np.array(nodes.probabilities, np.float32),
                offsets=np.array(offsets, np.int64),
            )
            if total_nodes is not None and len(batch.tokens) > total_nodes:
                batch = most_probable(batch, total_nodes)
                nodes = Nodes(batch.tokens.tolist(), batch.parents.tolist(), [], [])
                offsets = batch.offsets.tolist()
            for turn, (start, stop) in zip(turns, pairwise(offsets), strict=True):
                turn.draft = (nodes, start, stop)
            self._drafted += len(batch.tokens)
            return batch

    def commit(self, handles: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Move turns on by the tokens that the policy sampled since the last call.

        Args:
            handles: Live turns, shape (rows,).
            tokens: Accepted draft tokens and the one sampled after them, one sequence a row.

        Raises:
            UnknownTurn: If a handle is not live.
            ValueError: If ``tokens`` does not have one entry a row.
        """
        if len(tokens) != len(handles):
            raise ValueError(f"tokens needs one entry a row: expected {len(handles)}, got {len(tokens)}")
        with self._lock:
            for turn, said in zip(self._live(handles), tokens, strict=True):
                if turn.draft is not None:
                    self._accepted += accepted(*turn.draft, said)
                    turn.draft = None
                turn.context = self._graph.learn(turn.context, said, turn.path)
                self._committed += len(said)

    def end(self, handles: Sequence[int], *, keep: bool = True) -> None:
        """Finish turns.

        Args:
            handles: Live turns, shape (rows,).
            keep: ``False`` for aborted turns: what they added is taken back.

        Raises:
            UnknownTurn: If a handle is not live.
        """
        with self._lock:
            for handle, turn in zip(handles, self._live(handles), strict=True):
                del self._turns[handle]
                turn.state.live -= 1
                if keep and len(turn.path) > 1:
                    self._keep(turn.state, turn.tokens)
                else:
                    self._graph.forget(turn.state.start, turn.tokens)
                    if not turn.state.live and not turn.state.rollouts:
                        self._drop(turn.state)
            self._shrink()

    def insert(self, state: DialogueState, tokens: Sequence[int]) -> None:
        """Add a finished turn, as if it had just been sampled.

        Args:
            state: Where it was said.
            tokens: What was said, shape (tokens,).
        """
        with self._lock:
            turn = _Turn(self._hold(state))
            self._graph.learn(turn.context, [int(token) for token in tokens], turn.path)
            self._keep(turn.state, turn.tokens)
            self._shrink()

    def stats(self) -> PlainStats:
        """Count what is held and what was done."""
        with self._lock:
            return PlainStats(
                states=len(self._states),
                rollouts=sum(len(state.rollouts) for state in self._states.values()),
                live=len(self._turns),
                tokens=self._tokens,
                contexts=len(self._graph),
                drafted=self._drafted,
                accepted=self._accepted,
                committed=self._committed,
                evicted_rollouts=self._evicted_rollouts,
                evicted_states=self._evicted_states,
            )

    def tree(self, state: DialogueState) -> TreeNode:
        """The prefix tree of the turns known at ``state``, live ones included; empty where unknown."""
        with self._lock:
            held = self._states.get(state.exact)
            if held is None:
                return TreeNode(token=START)
            live = [turn.tokens for turn in self._turns.values() if turn.state is held and len(turn.path) > 1]
            return TreeNode.from_turns([*held.rollouts, *live])

    def clear(self) -> None:
        """Forget all turns. Handles of live turns become unknown; counters go on."""
        with self._lock:
            self._empty()

    def _live(self, handles: Sequence[int]) -> list[_Turn]:
        try:
            return [self._turns[handle] for handle in handles]
        except KeyError as error:
            raise UnknownTurn(
                f"handle {error.args[0]!r} names no live turn: expected one that begin() returned and "
                "end() has not finished"
            ) from None

    def _hold(self, state: DialogueState) -> _State:
        """The record of ``state``, made where it is new, as the most recently used one."""
        held = self._states.get(state.exact)
        if held is None:
            keys = _keys(state)
            chain = [(keys[rung], i) for i, (rung, _, _) in enumerate(self.config.levels) if rung in keys]
            held = self._states[state.exact] = _State(state.exact, self._graph.hold(chain))
        else:
            self._states.move_to_end(state.exact)
        return held

    def _keep(self, state: _State, tokens: array[int]) -> None:
        state.rollouts.append(tokens)
        self._tokens += len(tokens)
        if len(state.rollouts) > self.config.rollouts_per_state:
            self._evict_oldest(state)

    def _evict_oldest(self, state: _State) -> None:
        oldest = state.rollouts.popleft()
        self._tokens -= len(oldest)
        self._evicted_rollouts += 1
        self._graph.forget(state.start, oldest)

    def _shrink(self) -> None:
        """Drop the least recently used states without live turns until the rest fits."""
        if self._tokens <= self.config.max_tokens:
            return
        for state in [state for state in self._states.values() if not state.live]:
            while state.rollouts:
                self._evict_oldest(state)
            self._drop(state)
            self._evicted_states += 1
            if self._tokens <= self.config.max_tokens:
                return

    def _drop(self, state: _State) -> None:
        del self._states[state.key]
        self._graph.release(state.start)


def _keys(state: DialogueState) -> dict[str, int]:
    """The keys of the rungs that tell more than the one before. Before the first tool call, "same task and
    tool history" says the same as the exact state."""
    keys = dict(zip(RUNGS, state.ladder(), strict=True))
    if not state.task:
        del keys["task"]
    if not state.task or not state.tools:
        del keys["tools"]
    return keys
