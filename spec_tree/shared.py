"""One forest for several processes: one of them writes, the others read.

``SharedForest`` is a ``SpecForest`` whose log, keys and weights lie in shared
memory of a fixed size. A ``ForestReader`` attaches to it by name and drafts for
live turns of its own, which nobody else sees: what they say is neither indexed
nor learnt from, and not even the turn itself is drafted from it. Let the writer
``insert`` it where it is worth it.

Neither waits for the other. A reader may see a turn half written or half
overwritten; its drafts are then worse, but always trees of tokens that were
inserted. When the writer closes, its readers go on with the memory as it was
left, and ``ForestReader.writer_closed`` tells; new ones cannot attach.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from turntree.spec_tree.batch import move_on
from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.draft import DraftBatch
from turntree.spec_tree.errors import ForestError
from turntree.spec_tree.forest import SpecForest
from turntree.spec_tree.live_table import LiveTable, context_ids, said_ids
from turntree.spec_tree.proposal import propose
from turntree.spec_tree.rollouts import Rollouts
from turntree.spec_tree.shared_arrays import ForestArrays, SharedArrays, release
from turntree.spec_tree.snapshot import read_snapshot
from turntree.spec_tree.state import DialogueState


class SharedForest(SpecForest):
    """A forest that other processes may read.

    Example:
        >>> state = DialogueState.from_tokens([1, 2, 3])
        >>> with SharedForest(ForestConfig(max_tokens=4096)) as forest:
        ...     reader = ForestReader.attach(forest.name)  # in any process
        ...     forest.insert(state, [7, 8, 9])
        ...     reader.draft(reader.begin([state]), max_nodes=2, room=[8]).tokens.tolist()
        ...     reader.close()
        [7, 8]
    """

    def __init__(self, config: ForestConfig | None = None, *, name: str | None = None) -> None:
        """Make an empty forest in shared memory.

        Args:
            config: Settings; the defaults without it. The log has its full size at once.
            name: Of the shared memory; one that is free without it.

        Raises:
            ForestError: If the name is taken, or there is too little shared memory.
        """
        super().__init__(config)
        self._shared = SharedArrays.create(self.config, self._arrays(), name)
        self._adopt()
        self._release = weakref.finalize(self, release, self._shared.block, os.getpid())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """What readers attach to."""
        return self._shared.block.name

    def close(self) -> None:
        """Take the name away. Readers go on with what they see, and this forest on its own; more cannot attach.

        The process does this at its end for every forest that it has not closed.
        """
        self._release()

    def clear(self) -> None:
        """As ``SpecForest.clear``, for the readers too."""
        with self._lock:
            super().clear()
            self._shared.fill(self._arrays())
            self._adopt()

    @classmethod
    def load(cls, path: str | os.PathLike[str], config: ForestConfig | None = None, *, name: str | None = None) -> Self:
        """As ``SpecForest.load``, into shared memory of the given name."""
        snapshot = read_snapshot(Path(path))
        forest = cls(config or snapshot.config, name=name)
        forest._take(snapshot)
        return forest

    def _no_rollouts(self) -> Rollouts:
        return Rollouts(self.config, growing=False)

    def _arrays(self) -> ForestArrays:
        store = self._rollouts.store
        return ForestArrays(store.log, store.keys, self._weights)

    def _adopt(self) -> None:
        """Go on with the shared arrays, which hold what the forest's own did."""
        store = self._rollouts.store
        store.log, store.keys, self._weights = self._shared.arrays


class ForestReader:
    """Drafts from a forest of another process, for live turns of its own. For one thread at a time."""

    def __init__(self, shared: SharedArrays) -> None:
        """Read ``shared``; ``attach`` finds it by name."""
        self._shared: SharedArrays | None = shared
        self._live = LiveTable(shared.config)
        self._ends = np.array(sorted(shared.config.end_tokens), np.int32)
        self._own_weights = shared.arrays.weights.copy()
        """What the kernel learns from this reader's turns; drafts are made with the writer's weights."""

    @classmethod
    def attach(cls, name: str) -> ForestReader:
        """Read the forest whose ``SharedForest.name`` this is.

        Raises:
            ForestError: If there is none.
            DamagedForest: If the memory of that name is no forest of this version.
        """
        return cls(SharedArrays.attach(name))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def config(self) -> ForestConfig:
        """Settings of the forest."""
        return self._attached().config

    @property
    def writer_closed(self) -> bool:
        """Whether the writer has closed the forest: what is read changes no more."""
        return self._attached().closed

    def begin(self, states: Sequence[DialogueState], contexts: Sequence[ArrayLike] | None = None) -> list[int]:
        """Start one turn at each state and return their handles; see ``SpecForest.begin``."""
        self._attached()
        asked = context_ids(states, contexts)
        self._live.reserve(len(states))
        handles = []
        for i, state in enumerate(states):
            handle, row = self._live.open(state)
            if asked is not None:
                self._live.contexts.add(row, asked[i], self._live.turns)
            handles.append(handle)
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
        """Propose continuations of live turns; see ``SpecForest.draft``."""
        log, keys, weights = self._attached().arrays
        return propose(
            self._live.rows(handles),
            self._live.turns,
            self._live.contexts.log,
            log,
            keys,
            weights,
            self._ends,
            max_nodes=max_nodes,
            room=room,
            min_probability=min_probability,
            chain=chain,
            total_nodes=total_nodes,
        )

    def advance(self, handles: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Move turns on by the tokens that the policy sampled since the last call.

        Args:
            handles: Live turns, shape (rows,).
            tokens: Accepted draft tokens and the one sampled after them, one sequence a row.

        Raises:
            UnknownTurn: If a handle is not live.
            ValueError: If ``tokens`` does not have one entry a row, or holds what is no token id.
        """
        log, _, _ = self._attached().arrays
        said, offsets = said_ids(handles, tokens)
        rows = self._live.rows(handles)
        nowhere = np.zeros(1, np.int64)  # no turn of a reader stands in the log, so nothing is appended
        move_on(rows, said, offsets, self._live.turns.records, log, self._live.contexts.log, self._own_weights, nowhere)

    def end(self, handles: Sequence[int]) -> None:
        """Finish turns.

        Args:
            handles: Live turns, shape (rows,).

        Raises:
            UnknownTurn: If a handle is not live.
            ValueError: If a handle comes twice.
        """
        self._live.rows_once(handles)
        self._live.close(handles)

    def close(self) -> None:
        """Let go of the shared memory. The forest is not touched."""
        if self._shared is not None:
            block, self._shared = self._shared.block, None
            block.close()

    def _attached(self) -> SharedArrays:
        if self._shared is None:
            raise ForestError("this reader is closed: attach to the forest again")
        return self._shared
