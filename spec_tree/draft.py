"""Drafts of a whole batch as flat arrays.

Row ``b`` owns the nodes ``offsets[b]:offsets[b + 1]``. Invariants: parents come
before children, siblings are distinct, depth of a node is depth of its parent
plus one. ``-1`` as a parent means the last token that the row has sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBatch:
    """Proposed continuations, one tree a row."""

    tokens: NDArray[np.int32]
    """Token of each node, shape (nodes,)."""
    parents: NDArray[np.int32]
    """Index of the parent within the row's nodes, -1 at the root, shape (nodes,)."""
    depths: NDArray[np.int32]
    """1 for the children of the root, shape (nodes,)."""
    probabilities: NDArray[np.float32]
    """Estimated probability that the whole path down to the node is accepted, shape (nodes,)."""
    offsets: NDArray[np.int64]
    """First node of each row, shape (rows + 1,)."""

    @classmethod
    def empty(cls, rows: int) -> DraftBatch:
        """A batch of ``rows`` rows that drafts nothing."""
        none: NDArray[Any] = np.zeros(0, np.int32)
        return cls(
            tokens=none,
            parents=none,
            depths=none,
            probabilities=none.astype(np.float32),
            offsets=np.zeros(rows + 1, np.int64),
        )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.offsets) - 1
