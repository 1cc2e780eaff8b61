"""The public interface of the store.

``SpecForest`` keeps the turns that the policy sampled at each dialogue state and drafts
continuations of the next ones. Live turns are indexed as they grow, so unfinished siblings
profit from each other. All calls take the whole batch.

Invariant: tokens drafted from the log were sampled by the policy in
turns that are kept or live; a turn's context is used for its own drafts
alone. Drafts are hints: nothing here decides which tokens are emitted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.draft import DraftBatch
from turntree.spec_tree.kernels import batch as kernels
from turntree.spec_tree.kernels.layout import START, DraftLimits, DraftSources, Weights
from turntree.spec_tree.kernels.weights import first_weights
from turntree.spec_tree.state import DialogueState
from turntree.spec_tree.stats import ForestStats
from turntree.spec_tree.store.chains import COUNT, Chains, Proposals, go_on, help_out
from turntree.spec_tree.store.live_table import (
    LiveTable,
    Tokens,
    context_ids,
    flat_ids,
    known_tokens,
    said_ids,
    token_ids,
)
from turntree.spec_tree.store.prefix_tree import TreeNode
from turntree.spec_tree.store.proposal import MOST_NODES, ROWS_OF_A_THREAD, own_work, pool, propose, shortened
from turntree.spec_tree.store.retention import RetentionPolicy
from turntree.spec_tree.store.serialised_turns import collect, restore
from turntree.spec_tree.store.snapshot import Snapshot, read_imported, read_snapshot, write_snapshot

_TOGETHER = 4
"""Threads that draft chains at most: each more costs the calling one time with the interpreter's lock."""


class SpecForest:
    """Earlier turns, by dialogue state, as drafts for the next ones.

    Threads may share a forest: calls that change it wait for each other, and ``draft`` waits for none.

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

    def __init__(self, config: ForestConfig | None = None) -> None:
        """Make an empty forest.

        Args:
            config: Settings; ``None`` takes the defaults.

        Raises:
            DamagedForest: If ``config.import_turns`` is no forest, or one of a policy with other tokens; see ``load``.
            OSError: If it cannot be read.
        """
        self.config = config or ForestConfig()
        self._lock = threading.RLock()
        self._ends = np.array(sorted(self.config.end_tokens), np.int32)
        self.weights: Weights = first_weights()
        """Weights learnt from the acceptance of drafts."""
        self._threads = self.config.draft_threads
        self._drafted = self._accepted = self._committed = 0
        self.rollouts = RetentionPolicy(self.config)
        """The turns by state and the log; for checks and measurements only."""
        self.live_table = LiveTable(self.config)
        """The live turns; for checks and measurements only."""
        if self.config.import_turns:
            self.rollouts.add_imported(
                read_imported(Path(self.config.import_turns), self.config), self.live_table.turns
            )

    @property
    def sources(self) -> DraftSources:
        """What drafts are copied from as it is now: the log may be replaced by a larger one."""
        store = self.rollouts.store
        return DraftSources(log=store.log, turns=store.keys, contexts=self.live_table.contexts.log)

    def begin(self, states: Sequence[DialogueState], contexts: Sequence[Tokens] | None = None) -> list[int]:
        """Start one turn at each state and return their handles.

        Args:
            contexts: Token ids up to each turn, shape (tokens,) each: a turn is also drafted from its own
                context. They are copied, and forgotten with the turn.

        Raises:
            ValueError: If ``contexts`` does not have one entry a state, or holds something other than token ids.
        """
        asked = context_ids(states, contexts)
        with self._lock:
            self.live_table.reserve(len(states))
            handles, rows = self.live_table.open(states)
            self.rollouts.open(rows, states, self.live_table.turns)
            if asked is not None:
                self.live_table.contexts.add(rows, *asked, self.live_table.turns)
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
        """Propose continuations of live turns, the likeliest node of each row first.

        Args:
            handles: Live turns, shape (rows,).
            max_nodes: Most nodes a row, up to 128.
            room: Greatest depth allowed in each row, shape (rows,).
            min_probability: Nodes whose whole path is estimated to be accepted less often are left out.
            chain: One child a node.
            total_nodes: Most nodes of the whole batch; the most probable are kept.

        Raises:
            UnknownTurn: If a handle is not live.
            ValueError: If ``room`` does not have one entry a row.
        """
        rows, live = self.live_table.rows(handles), self.live_table.turns
        budget = max(0, min(max_nodes, MOST_NODES))
        limits = DraftLimits(budget=budget, floor=float(min_probability), chain=chain, ends=self._ends)
        batch = propose(rows, room, limits, live, self.sources, self.weights, threads=self._threads)
        if total_nodes is not None:
            batch = shortened(batch, total_nodes, rows, live)
        self._drafted += len(batch.tokens)
        return batch

    def commit(self, handles: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Extend turns by the tokens that the policy sampled since the last call, and learn from them.

        Args:
            handles: Live turns, shape (rows,).
            tokens: Accepted draft tokens and the one sampled after them, one sequence a row.

        Raises:
            UnknownTurn: If a handle is not live.
            ValueError: If ``tokens`` does not have one entry a row, or holds something other than token ids.
        """
        sampled, offsets = said_ids(handles, tokens)
        with self._lock:
            rows, live = self.live_table.rows(handles), self.live_table.turns
            begin, lengths = 0, offsets[1:] - offsets[:-1]
            while begin < len(rows):
                stop = self.rollouts.room_for(lengths, begin, rows, live)
                self._accepted += kernels.advance(
                    rows[begin:stop],
                    sampled,
                    offsets[begin : stop + 1],
                    live.records,
                    self.sources,
                    self.weights,
                    self.rollouts.store.head,
                )
                begin = stop
            self._committed += len(sampled)
            self._drop_wrong_imports(len(sampled))

    def advance(
        self,
        chains: Chains,
        due: NDArray[np.int32],
        tokens: int,
        slots: NDArray[np.int32],
        *,
        step: int,
        min_probability: float,
        out: Proposals,
    ) -> None:
        """Extend the turns of ``due`` by the tokens that they hold, then draft chains, in one call without the
        interpreter's lock.

        Args:
            chains: Live turns of this forest.
            due: Slots of ``chains``, each once.
            tokens: What they hold together.
            slots: Slot of each row that is drafted for, -1 for none, shape (rows,).
            step: Number of the step in which they sampled.
            min_probability: As of ``draft``.
            out: Filled.
        """
        longest = chains.estimates.shape[1]
        limits = DraftLimits(budget=longest, floor=float(min_probability), chain=True, ends=self._ends)
        live = self.live_table.turns

        def run(due: NDArray[np.int32], slots: NDArray[np.int32], threads: int) -> None:
            head, share = self.rollouts.store.head, np.zeros(3, np.int64)
            given = live.records, self.sources, self.weights
            for _ in range(threads - 1):
                pool().submit(lambda: help_out(share, limits, *given, own_work(), out))
            try:
                counts = go_on(due, slots, step, limits, chains, *given, head, own_work(), out, share)
            finally:
                share[COUNT] = share[COUNT] or -1  # so that nobody waits for a call that failed
            self._accepted += counts[0]
            self._drafted += counts[1]

        with self._lock:
            self._drop_wrong_imports(tokens)  # by what was sampled before these
            if not self.rollouts.room_for_all(len(due), tokens, live):
                lengths, rows, begin = chains.records["held"][due], chains.records["row"][due], 0
                while begin < len(due):
                    stop = self.rollouts.room_for(lengths, begin, rows, live)
                    run(due[begin:stop], slots[:0], 1)
                    begin = stop
                due = due[:0]
            run(due, slots, min(self._threads, _TOGETHER, len(slots) // ROWS_OF_A_THREAD) if out.most > 0 else 1)
            self._committed += tokens

    def end(self, handles: Sequence[int], *, keep: bool = True) -> None:
        """Finish turns.

        Args:
            handles: Live turns, shape (rows,).
            keep: ``False`` for aborted turns: their tokens are no longer found.

        Raises:
            UnknownTurn: If a handle is not live.
            ValueError: If a handle comes twice.
        """
        with self._lock:
            self.rollouts.close(self.live_table.rows_once(handles), self.live_table.turns, keep=keep)
            self.live_table.close(handles)

    def insert(self, state: DialogueState, tokens: Sequence[int]) -> None:
        """Add a finished turn, as if it had just been sampled.

        Args:
            tokens: Sampled tokens, shape (tokens,).

        Raises:
            ValueError: If ``tokens`` holds something other than token ids of the vocabulary.
        """
        sampled = known_tokens(token_ids(tokens, "tokens"), self.config.vocabulary)
        with self._lock:
            self.rollouts.add(state, sampled, self.live_table.turns)

    def insert_all(self, states: Sequence[DialogueState], turns: Sequence[Sequence[int]]) -> None:
        """Add finished turns, as if they had just been sampled in this order.

        Args:
            states: States where they were sampled, shape (turns,).
            turns: Sampled tokens, shape (tokens,) each.

        Raises:
            ValueError: If there is not one turn a state, or one holds something other than token ids of the vocabulary.
        """
        if len(states) != len(turns):
            raise ValueError(f"turns needs one entry a state: expected {len(states)}, got {len(turns)}")
        sampled, offsets = flat_ids(turns, "turns")
        known_tokens(sampled, self.config.vocabulary)
        with self._lock:
            self.rollouts.add_all(states, sampled, offsets, self.live_table.turns)

    def finished(self, states: Sequence[DialogueState]) -> list[int]:
        """Count the finished turns held at each state."""
        with self._lock:
            return [self.rollouts.finished(state) for state in states]

    def stats(self) -> ForestStats:
        """Count what is held and what was done."""
        with self._lock:
            rollouts = self.rollouts
            return ForestStats(
                states=rollouts.states,
                rollouts=rollouts.count,
                live=len(self.live_table),
                tokens=rollouts.tokens,
                cold_tokens=rollouts.cold.tokens,
                bytes=rollouts.store.bytes,
                cold_bytes=rollouts.cold.bytes,
                context_bytes=self.live_table.contexts.bytes,
                live_bytes=sum(array.nbytes for array in (self.live_table.turns.records, self.weights)),
                drafted=self._drafted,
                accepted=self._accepted,
                committed=self._committed,
                evicted_rollouts=rollouts.evicted,
                evicted_states=rollouts.cold.dropped_states,
            )

    def imported_counters(self) -> dict[str, float]:
        """Counters of the turns of other runs, by their names in the metrics; empty where none were given."""
        past = self.rollouts.imported
        return {"imported_turns": past.given, "imported_evicted": past.forgotten} if self.config.import_turns else {}

    def tree(self, state: DialogueState) -> TreeNode:
        """The prefix tree of the turns known at ``state``, live ones included; empty where unknown."""
        with self._lock:
            turns = self.rollouts.known(state, self.live_table.turns)
        return TreeNode.from_turns([turn.tolist() for turn in turns]) if turns else TreeNode(token=START)

    def clear(self) -> None:
        """Remove all turns. Handles of live turns become unknown; learnt weights and the counts of drafts stay."""
        with self._lock:
            self.rollouts = RetentionPolicy(self.config)
            self.live_table.clear()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all finished turns, the settings, the counters and the learnt weights into a file.

        Live turns are not written. The file replaces the old one when it is complete.

        Args:
            path: The file; by convention it ends in ``.npz``.

        Raises:
            OSError: If it cannot be written; an old file stays unchanged.
        """
        with self._lock:
            snapshot = Snapshot(
                config=self.config,
                held=collect(self.rollouts),
                weights=self.weights.copy(),
                counters=np.array([self._drafted, self._accepted, self._committed], np.int64),
            )
        write_snapshot(Path(path), snapshot)

    @classmethod
    def load(cls, path: str | os.PathLike[str], config: ForestConfig | None = None) -> Self:
        """Make a forest from a file of ``save``; no turn is live.

        Args:
            config: Settings instead of the saved ones. If they leave less room, the newest turns are
                kept; learnt weights are kept under any settings.

        Raises:
            DamagedForest: If the file is not a forest's, incomplete, of another version, or of a policy with other
                tokens; one that does not say of which tokenizer it is counts as this policy's.
            OSError: If it cannot be read.
        """
        snapshot = read_snapshot(Path(path), config)
        forest = cls(replace(snapshot.config, import_turns=""))  # the file has what was left of it
        forest._take(snapshot)
        return forest

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Replace the contents by those of a file of ``save``, under this forest's own settings.

        Handles of live turns become unknown.

        Raises:
            DamagedForest: As ``load``; the forest stays unchanged.
            OSError: If it cannot be read.
        """
        snapshot = read_snapshot(Path(path), self.config)
        with self._lock:
            self.config = snapshot.config
            self.clear()
            self._take(snapshot)

    def _take(self, snapshot: Snapshot) -> None:
        self._drafted, self._accepted, self._committed = snapshot.counters.tolist()
        self.weights[:] = snapshot.weights
        restore(snapshot.held, self.rollouts, self.live_table.turns)

    def _drop_wrong_imports(self, tokens: int) -> None:
        if self.rollouts.drop_wrong_imports(tokens):
            self.weights[:] = first_weights()  # what was learnt until now, was learnt of those turns
