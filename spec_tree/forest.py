"""The one public face of the store.

``SpecForest`` keeps what the policy said at each dialogue state and drafts what
it may say next. Live turns are indexed as they grow, so unfinished siblings
profit from each other. All calls take the whole batch.

Invariant: what the store knows is exactly the finished turns that it keeps and
the live turns so far; leaving out a turn (quota, memory, an aborted turn) takes
its counts back. Drafts are hints: nothing here decides what is emitted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.contexts import Level, Node
from turntree.spec_tree.draft import DraftBatch
from turntree.spec_tree.drafting import Nodes, grow_chain, grow_tree
from turntree.spec_tree.prefix_tree import TreeNode
from turntree.spec_tree.state import DialogueState


class UnknownTurn(LookupError):
    """A handle that ``begin`` did not give, or whose turn has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestStats:
    """What a forest holds and has done."""

    states: int
    """Dialogue states held."""
    rollouts: int
    """Finished turns held."""
    live: int
    """Turns that have begun and not ended."""
    tokens: int
    """Tokens of the finished turns held."""
    contexts: int
    """Nodes of the context graph, all levels."""
    bytes: int
    """Approximate memory of the contexts and tokens, in bytes."""
    drafted: int
    """Draft nodes returned since the beginning."""
    accepted: int
    """Drafted nodes that were committed since the beginning."""
    committed: int
    """Tokens committed since the beginning."""
    evicted_rollouts: int
    """Finished turns dropped for the quota of their state or for memory."""
    evicted_states: int
    """Dialogue states dropped for memory."""


class _Rung:
    """The levels of one key of the ladder."""

    __slots__ = ("levels", "users")

    def __init__(self, levels: tuple[Level, ...]) -> None:
        self.levels = levels
        self.users = 0


class _State:
    """One dialogue state: where its turns start, and the finished ones that are kept."""

    __slots__ = ("key", "live", "rollouts", "rungs", "starts", "tokens")

    def __init__(self, key: int, rungs: tuple[int, ...], starts: list[Node]) -> None:
        self.key = key
        self.rungs = rungs
        self.starts = starts
        """``START`` on every level, narrowest first."""
        self.rollouts: list[tuple[int, ...]] = []
        self.live = 0
        self.tokens = 0


class _Turn:
    """A live turn: its cursor, what it has said, and the draft that awaits its verdict."""

    __slots__ = ("draft", "draft_end", "draft_start", "node", "state", "tokens")

    def __init__(self, state: _State) -> None:
        self.state = state
        self.node = state.starts[0]
        self.tokens: list[int] = []
        self.draft: Nodes | None = None
        self.draft_start = 0
        self.draft_end = 0


class SpecForest:
    """Earlier turns, by dialogue state, as drafts for the next ones. Safe to share between threads."""

    def __init__(self, config: ForestConfig | None = None) -> None:
        self.config = config or ForestConfig()
        self._lock = threading.Lock()
        self._handles = 0
        self._drafted = self._accepted = self._committed = 0
        self._evicted_rollouts = self._evicted_states = 0
        self._reset()

    def _reset(self) -> None:
        self._rungs: dict[int, _Rung] = {}
        self._states: OrderedDict[int, _State] = OrderedDict()
        self._turns: dict[int, _Turn] = {}
        self._tokens = 0

    def begin(self, states: Sequence[DialogueState]) -> list[int]:
        """Start one turn at each state and return their handles."""
        with self._lock:
            first = self._handles
            self._handles += len(states)
            handles = list(range(first, self._handles))
            for handle, state in zip(handles, states, strict=True):
                held = self._hold(state)
                held.live += 1
                self._turns[handle] = _Turn(held)
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
            min_probability: Nodes whose path is estimated to be accepted less often are left out.
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
            turns = [self._turn(handle) for handle in handles]
            out = Nodes([], [], [], [])
            offsets = [0]
            for turn, depth in zip(turns, room, strict=True):
                if not turn.tokens or turn.tokens[-1] not in end_tokens:
                    grow(
                        turn.node,
                        out,
                        max_nodes=max_nodes,
                        room=depth,
                        floor=min_probability,
                        end_tokens=end_tokens,
                    )
                offsets.append(len(out.tokens))
            batch = DraftBatch(
                tokens=np.array(out.tokens, np.int32),
                parents=np.array(out.parents, np.int32),
                depths=np.array(out.depths, np.int32),
                probabilities=np.array(out.probabilities, np.float32),
                offsets=np.array(offsets, np.int64),
            )
            if total_nodes is not None and len(out.tokens) > total_nodes:
                batch = _most_probable(batch, total_nodes)
                offsets = batch.offsets.tolist()
                out = Nodes(batch.tokens.tolist(), batch.parents.tolist(), [], [])
            for row, turn in enumerate(turns):
                turn.draft, turn.draft_start, turn.draft_end = out, offsets[row], offsets[row + 1]
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
            for turn, said in zip([self._turn(handle) for handle in handles], tokens, strict=True):
                if turn.draft is not None:
                    self._accepted += _accepted(turn, said)
                    turn.draft = None
                node = turn.node
                for token in said:
                    node = node.learn(token)
                turn.node = node
                turn.tokens.extend(said)
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
            for handle in handles:
                turn = self._turn(handle)
                del self._turns[handle]
                turn.state.live -= 1
                if keep and turn.tokens:
                    self._keep(turn.state, tuple(turn.tokens))
                else:
                    self._forget(turn.state, turn.tokens)
                    if not turn.state.live and not turn.state.rollouts:
                        self._drop(turn.state)
            self._shrink()

    def insert(self, state: DialogueState, tokens: Sequence[int]) -> None:
        """Add a finished turn, as if it had just been sampled."""
        with self._lock:
            held = self._hold(state)
            node = held.starts[0]
            said = tuple(int(token) for token in tokens)
            for token in said:
                node = node.learn(token)
            self._keep(held, said)
            self._shrink()

    def stats(self) -> ForestStats:
        """Count what is held and what was done."""
        with self._lock:
            levels = [level for rung in self._rungs.values() for level in rung.levels]
            contexts = sum(len(level.nodes) for level in levels)
            return ForestStats(
                states=len(self._states),
                rollouts=sum(len(state.rollouts) for state in self._states.values()),
                live=len(self._turns),
                tokens=self._tokens,
                contexts=contexts,
                bytes=contexts * 600 + self._tokens * 8,
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
                return TreeNode(token=-1)
            live = [tuple(turn.tokens) for turn in self._turns.values() if turn.state is held and turn.tokens]
            return TreeNode.from_turns([*held.rollouts, *live])

    def clear(self) -> None:
        """Forget everything; live turns end."""
        with self._lock:
            self._reset()

    def _turn(self, handle: int) -> _Turn:
        turn = self._turns.get(handle)
        if turn is None:
            raise UnknownTurn(
                f"handle {handle!r} names no live turn: it was never begun, or has ended; call begin() first"
            )
        return turn

    def _hold(self, state: DialogueState) -> _State:
        """The record of ``state``, made where it is new, as the most recently used one."""
        held = self._states.get(state.exact)
        if held is not None:
            self._states.move_to_end(state.exact)
            return held
        keys = state.ladder()
        levels: list[Level] = []
        for rung_index, key in enumerate(keys):
            rung = self._rungs.get(key)
            if rung is None:
                orders = self.config.wide_orders if rung_index else self.config.exact_orders
                rung = self._rungs[key] = _Rung(tuple(Level(order, self.config.prior) for order in orders))
            rung.users += 1
            levels.extend(rung.levels)
        starts: list[Node] = []
        back: Node | None = None
        for level in reversed(levels):
            back = level.start(back)
            starts.append(back)
        held = self._states[state.exact] = _State(state.exact, keys, starts[::-1])
        return held

    def _keep(self, state: _State, tokens: tuple[int, ...]) -> None:
        state.rollouts.append(tokens)
        state.tokens += len(tokens)
        self._tokens += len(tokens)
        if len(state.rollouts) > self.config.rollouts_per_state:
            self._evict_oldest(state)

    def _evict_oldest(self, state: _State) -> None:
        oldest = state.rollouts.pop(0)
        state.tokens -= len(oldest)
        self._tokens -= len(oldest)
        self._evicted_rollouts += 1
        self._forget(state, oldest)

    def _forget(self, state: _State, tokens: Sequence[int]) -> None:
        node = state.starts[0]
        for token in tokens:
            node = node.forget(token)

    def _shrink(self) -> None:
        """Drop the least recently used states that no live turn holds until the rest fits."""
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
        for node in state.starts:
            node.release()
        for key in state.rungs:
            rung = self._rungs[key]
            rung.users -= 1
            if not rung.users:
                del self._rungs[key]


def _accepted(turn: _Turn, said: Sequence[int]) -> int:
    """How many of the tokens ``said`` lie on a path of the turn's draft."""
    assert turn.draft is not None
    tokens, parents, end = turn.draft.tokens, turn.draft.parents, turn.draft_end
    count, at, parent = 0, turn.draft_start, -1
    for token in said:
        while True:
            try:
                at = tokens.index(token, at, end)
            except ValueError:
                return count
            if parents[at] == parent:
                break
            at += 1
        parent = at - turn.draft_start
        count += 1
        at += 1
    return count


def _most_probable(batch: DraftBatch, total: int) -> DraftBatch:
    """Keep the ``total`` most probable nodes; a stable order keeps parents before children."""
    kept = np.zeros(len(batch.tokens), bool)
    kept[np.argsort(-batch.probabilities, kind="stable")[: max(total, 0)]] = True
    before = np.concatenate([[0], np.cumsum(kept)])
    offsets = before[batch.offsets]
    rows = np.repeat(np.arange(batch.rows), np.diff(batch.offsets))
    absolute = batch.parents + batch.offsets[rows]
    parents = np.where(batch.parents < 0, -1, before[np.maximum(absolute, 0)] - offsets[rows])
    return DraftBatch(
        tokens=batch.tokens[kept],
        parents=parents[kept].astype(np.int32),
        depths=batch.depths[kept],
        probabilities=batch.probabilities[kept],
        offsets=offsets.astype(np.int64),
    )
