"""The public interface of the draft store."""

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
from turntree.spec_tree.store.chains import COUNT, Chains, DraftStore, Proposals, advance, help_out
from turntree.spec_tree.store.live_table import (
    LiveTable,
    Tokens,
    context_ids,
    flat_ids,
    known_tokens,
    new_ids,
    token_ids,
)
from turntree.spec_tree.store.prefix_tree import TreeNode
from turntree.spec_tree.store.proposal import MOST_NODES, ROWS_OF_A_THREAD, own_work, pool, propose, shortened
from turntree.spec_tree.store.retention import RetentionPolicy
from turntree.spec_tree.store.serialised_turns import collect, restore
from turntree.spec_tree.store.snapshot import Snapshot, read_imported, read_snapshot, write_snapshot

_CHAIN_THREADS = 4  #: maximum threads that draft chains: every further thread makes the caller wait for the GIL longer


class SpecForest:
    """Store earlier turns by dialogue state, and draft the next turns from them.

    Live turns (begun, not ended) are indexed as they grow, so turns of one group draft for each other before they end.
    All calls take the whole batch.

    Drafted tokens are copied from kept turns, from live turns, or from the turn's own context.
    Drafts never change which tokens are sampled. Threads may share a forest: calls that change the forest wait for each
    other, and ``draft`` never waits.

    Args:
        config: Settings; ``None`` means the defaults.

    Raises:
        DamagedForest: If ``config.import_turns`` is not a saved forest, or belongs to another tokenizer; see ``load``.
        OSError: If the file cannot be read.

    Example:
        >>> forest = SpecForest()
        >>> state = DialogueState.from_tokens([1, 2, 3])
        >>> forest.insert(state, [7, 8, 9])
        >>> turn = forest.begin([state])
        >>> forest.draft(turn, max_nodes=2, max_depths=[8]).tokens.tolist()
        [7, 8]
        >>> forest.commit(turn, [[7, 8, 5]])
        >>> forest.end(turn)
        >>> forest.stats().accepted
        2
    """

    def __init__(self, config: ForestConfig | None = None) -> None:
        self.config = config or ForestConfig()
        self._lock = threading.RLock()
        self._ends = np.array(sorted(self.config.end_tokens), np.int32)
        self.weights: Weights = first_weights()  #: weights of the draft model, learnt from the acceptance of drafts
        self._threads = self.config.draft_threads
        self._drafted = self._accepted = self._committed = 0
        #: turns by state, and the log; public for tests and measurements only
        self.rollouts = RetentionPolicy(self.config)
        self.live_table = LiveTable(self.config)  #: live turns; public for tests and measurements only
        if self.config.import_turns:
            self.rollouts.add_imported(
                read_imported(Path(self.config.import_turns), self.config), self.live_table.turns
            )

    @property
    def sources(self) -> DraftSources:
        """Arrays that drafts are copied from. When the log grows, new arrays may replace them."""
        store = self.rollouts.store
        return DraftSources(log=store.log, turns=store.keys, contexts=self.live_table.contexts.log)

    def begin(self, states: Sequence[DialogueState], contexts: Sequence[Tokens] | None = None) -> list[int]:
        """Start one turn at each state and return their handles.

        Args:
            states: The states, shape (turns,).
            contexts: Token ids before each turn, shape (tokens,) each, from which the turn is also drafted. The forest
                copies them, and drops the copy with the turn.

        Raises:
            ValueError: If there is not one context per state, or a context holds something other than token ids.
        """
        context_tokens = context_ids(states, contexts)
        with self._lock:
            self.live_table.reserve(len(states))
            handles, rows = self.live_table.open(states)
            self.rollouts.open(rows, states, self.live_table.turns)
            if context_tokens is not None:
                self.live_table.contexts.add(rows, *context_tokens, self.live_table.turns)
            return handles

    def draft(
        self,
        handles: Sequence[int],
        *,
        max_nodes: int,
        max_depths: Sequence[int],
        min_probability: float = 0.0,
        chain: bool = False,
        total_nodes: int | None = None,
    ) -> DraftBatch:
        """Propose continuations of live turns, the likeliest node of each row first.

        Args:
            handles: Live turns, shape (rows,).
            max_nodes: Maximum nodes (drafted tokens) per row, up to 128.
            max_depths: Maximum depth of each row's draft, shape (rows,).
            min_probability: Minimum estimated probability that a node's whole path is accepted.
            chain: Draft a chain: at most one child per node.
            total_nodes: Maximum nodes of the whole batch; the most probable nodes are kept.

        Raises:
            UnknownTurn: If a handle is not live.
            ValueError: If ``max_depths`` does not have one entry per row.
        """
        rows, live = self.live_table.rows(handles), self.live_table.turns
        budget = max(0, min(max_nodes, MOST_NODES))
        limits = DraftLimits(budget=budget, floor=float(min_probability), chain=chain, ends=self._ends)
        batch = propose(rows, max_depths, limits, live, self.sources, self.weights, threads=self._threads)
        if total_nodes is not None:
            batch = shortened(batch, total_nodes, rows, live)
        self._drafted += len(batch.tokens)
        return batch

    def commit(self, handles: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Extend turns by the tokens that the policy sampled since the last call, and learn from them.

        Args:
            handles: Live turns, shape (rows,).
            tokens: Accepted draft tokens and the token sampled after them, one sequence per row.

        Raises:
            UnknownTurn: If a handle is not live.
            ValueError: If there is not one sequence per row, or a sequence holds something other than token ids.
        """
        sampled, offsets = new_ids(handles, tokens)
        with self._lock:
            rows, live = self.live_table.rows(handles), self.live_table.turns
            begin, lengths = 0, offsets[1:] - offsets[:-1]
            # The log frees positions for as many rows as fit into a quarter of the log, usually for all rows.
            while begin < len(rows):
                stop = self.rollouts.make_room_for(lengths, begin, rows, live)
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
        """Extend the turns of ``due`` by their held tokens (see ``chains``), then draft, without the GIL.

        Args:
            chains: Live turns of this forest.
            due: Slots of ``chains`` whose turns are extended, each once.
            tokens: Number of tokens that the turns of ``due`` hold together.
            slots: Slot of each row to draft for, -1 for none, shape (rows,).
            step: Number of the step in which the turns sampled.
            min_probability: As in ``draft``.
            out: Buffers to fill.
        """
        longest = chains.estimates.shape[1]
        limits = DraftLimits(budget=longest, floor=float(min_probability), chain=True, ends=self._ends)
        live = self.live_table.turns

        def run(due: NDArray[np.int32], slots: NDArray[np.int32], threads: int) -> None:
            share = np.zeros(3, np.int64)
            arguments = limits, live.records, self.sources, self.weights
            for _ in range(threads - 1):
                pool().submit(lambda: help_out(share, *arguments, own_work(), out))
            try:
                store = DraftStore(*arguments, self.rollouts.store.head)
                counts = advance(due, slots, step, chains, store, own_work(), out, share)
            finally:
                share[COUNT] = share[COUNT] or -1  # helpers must not wait for a call that failed
            self._accepted += counts[0]
            self._drafted += counts[1]

        with self._lock:
            self._drop_wrong_imports(tokens)  # before the commit, so that only earlier tokens decide what is dropped
            if not self.rollouts.make_room_for_all(len(due), tokens, live):
                # Too many tokens for the log at once: commit them in parts, then draft without further commits.
                lengths, rows, begin = chains.records["held"][due], chains.records["row"][due], 0
                while begin < len(due):
                    stop = self.rollouts.make_room_for(lengths, begin, rows, live)
                    run(due[begin:stop], slots[:0], 1)
                    begin = stop
                due = due[:0]
            run(due, slots, min(self._threads, _CHAIN_THREADS, len(slots) // ROWS_OF_A_THREAD) if out.most > 0 else 1)
            self._committed += tokens

    def end(self, handles: Sequence[int], *, keep: bool = True) -> None:
        """Finish turns.

        Args:
            handles: Live turns, shape (rows,).
            keep: Pass ``False`` for aborted turns, whose tokens are then dropped.

        Raises:
            UnknownTurn: If a handle is not live.
            ValueError: If a handle occurs twice.
        """
        with self._lock:
            self.rollouts.close(self.live_table.rows_once(handles), self.live_table.turns, keep=keep)
            self.live_table.close(handles)

    def insert(self, state: DialogueState, tokens: Sequence[int]) -> None:
        """Add a finished turn as if the policy had just sampled the turn.

        Args:
            state: State where the turn was sampled.
            tokens: Sampled tokens, shape (tokens,).

        Raises:
            ValueError: If ``tokens`` holds something other than token ids of the vocabulary.
        """
        sampled = known_tokens(token_ids(tokens, "tokens"), self.config.vocabulary)
        with self._lock:
            self.rollouts.add(state, sampled, self.live_table.turns)

    def insert_all(self, states: Sequence[DialogueState], turns: Sequence[Sequence[int]]) -> None:
        """Add finished turns as if the policy had just sampled them in this order.

        Args:
            states: States where the turns were sampled, shape (turns,).
            turns: Sampled tokens, shape (tokens,) each.

        Raises:
            ValueError: If there is not one turn per state, or a turn holds something other than token ids of the
                vocabulary.
        """
        if len(states) != len(turns):
            raise ValueError(f"turns needs one entry per state: expected {len(states)}, got {len(turns)}")
        sampled, offsets = flat_ids(turns, "turns")
        known_tokens(sampled, self.config.vocabulary)
        with self._lock:
            self.rollouts.add_all(states, sampled, offsets, self.live_table.turns)

    def finished(self, states: Sequence[DialogueState]) -> list[int]:
        """Return the number of finished turns held at each state."""
        with self._lock:
            return [self.rollouts.finished(state) for state in states]

    def stats(self) -> ForestStats:
        """Return the contents and counters of the forest."""
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
        """Return the metrics of the imported turns; empty without imports."""
        imported = self.rollouts.imported
        if not self.config.import_turns:
            return {}
        return {"imported_turns": imported.count, "imported_evicted": imported.dropped}

    def tree(self, state: DialogueState) -> TreeNode:
        """Return the prefix tree of the turns at ``state``, including live turns; empty without turns."""
        with self._lock:
            turns = self.rollouts.known(state, self.live_table.turns)
        return TreeNode.from_turns([turn.tolist() for turn in turns]) if turns else TreeNode(token=START)

    def clear(self) -> None:
        """Remove all turns, invalidate the handles of live turns, and keep learnt weights and counters."""
        with self._lock:
            self.rollouts = RetentionPolicy(self.config)
            self.live_table.clear()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all finished turns, the settings, the counters and the learnt weights into a file.

        Live turns are not written. The file replaces an old one once it is complete.

        Args:
            path: The file; by convention it ends in ``.npz``.

        Raises:
            OSError: If the file cannot be written; an old file stays unchanged.
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
        """Return the forest saved in a file, without live turns.

        Args:
            path: The file.
            config: Settings instead of the saved settings. If they have smaller limits, the newest turns are kept;
            learnt
                weights are kept under any settings.

        Raises:
            DamagedForest: If the file is not a saved forest, is incomplete, or belongs to another version or tokenizer.
                A file without a tokenizer's hash is accepted.
            OSError: If the file cannot be read.
        """
        snapshot = read_snapshot(Path(path), config)
        forest = cls(replace(snapshot.config, import_turns=""))  # the file holds the remaining imported turns
        forest._take(snapshot)
        return forest

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Replace the contents by a file that ``save`` wrote, under this forest's own settings.

        Handles of live turns become unknown.

        Raises:
            DamagedForest: As for ``load``; the forest stays unchanged.
            OSError: If the file cannot be read.
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
            self.weights[:] = first_weights()  # the weights were learnt mostly from the dropped turns
