from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftBatch:
    """Drafts of a whole batch as flat arrays, one tree of tokens (nodes) per row.

    Row ``b`` owns the nodes ``offsets[b]:offsets[b + 1]``. Parents come before their children, and siblings are
    distinct.
    """

    tokens: NDArray[np.int32]  #: token of each node, shape (nodes,)
    #: index of the parent among the row's nodes, -1 for the last sampled token, shape (nodes,)
    parents: NDArray[np.int32]
    depths: NDArray[np.int32]  #: distance from the last sampled token, 1 for its children, shape (nodes,)
    #: estimated probability that the whole path to the node is accepted, shape (nodes,)
    probabilities: NDArray[np.float32]
    offsets: NDArray[np.int64]  #: first node of each row, shape (rows + 1,)

    @classmethod
    def empty(cls, rows: int) -> DraftBatch:
        """Return a batch of ``rows`` rows without drafts."""
        no_nodes: NDArray[Any] = np.zeros(0, np.int32)
        return cls(
            tokens=no_nodes,
            parents=no_nodes,
            depths=no_nodes,
            probabilities=no_nodes.astype(np.float32),
            offsets=np.zeros(rows + 1, np.int64),
        )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.offsets) - 1
