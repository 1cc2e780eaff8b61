"""Draft trees in the layout of SGLang's verification.

All requests of a pass have the same width, the number of nodes of each tree. Node 0, the root, is the last token that
the policy sampled. The drafted nodes follow, then padding: a chain of nodes that no link of the tree reaches. Padding
is therefore never accepted. The children of a node have different tokens: a verification rule that adds up the
children's probabilities would count a repeated token twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from turntree.spec_tree import DraftBatch

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRows:
    """Trees of one width, one per request."""

    tokens: Ints  #: shape (rows, width)
    seen: Flags  #: ``seen[b, i, j]``: node i attends to node j, itself or an ancestor, shape (rows, width, width)
    depths: Ints  #: 0 at the root, shape (rows, width)
    child: Ints  #: first child, -1 for none or where only padding follows, shape (rows, width)
    sibling: Ints  #: next child of the same parent, -1 for none, shape (rows, width)

    @property
    def width(self) -> int:
        return int(self.tokens.shape[1])

    def sampled(self, new: NDArray[np.int32]) -> Flags:
        """Return whether the policy sampled the path to each node, shape (rows, width); undefined at padding.

        ``new`` are the tokens sampled after the root, -1 after the last token, shape (rows, width or more).
        """
        # A node at depth d stands for the d-th new token; a path is sampled if no node on it differs.
        differs = self.tokens != np.take_along_axis(new, np.maximum(self.depths - 1, 0), 1)
        differs[:, 0] = False
        sampled: Flags = ~(self.seen & differs[:, None, :]).any(-1)
        return sampled


def best_nodes(draft: DraftBatch, most: int) -> DraftBatch:
    """Keep the first ``most`` nodes of each row: the caller's draft, then the draft store's nodes, likeliest first."""
    counts = np.diff(draft.offsets)
    if counts.max(initial=0) <= most:
        return draft
    kept_nodes = np.arange(len(draft.tokens)) - np.repeat(draft.offsets[:-1], counts) < most
    return DraftBatch(
        tokens=draft.tokens[kept_nodes],
        parents=draft.parents[kept_nodes],
        depths=draft.depths[kept_nodes],
        probabilities=draft.probabilities[kept_nodes],
        offsets=np.concatenate([[0], np.cumsum(np.minimum(counts, most))]).astype(np.int64),
    )


def tree_rows(draft: DraftBatch, last: Ints, width: int) -> TreeRows:
    """Lay out one tree of ``width`` nodes per row, root and padding included.

    ``last`` are the last sampled tokens, shape (rows,). A draft has at most ``width - 1`` nodes, else ``ValueError``.
    """
    counts = np.diff(draft.offsets)
    if counts.max(initial=0) >= width:
        raise ValueError(f"a draft may have {width - 1} nodes at width {width}, got {counts.max()}")
    rows = draft.rows
    tokens = np.repeat(last[:, None], width, 1)
    parents = np.tile(np.arange(-1, width - 1), (rows, 1))
    row = np.repeat(np.arange(rows), counts)
    node = np.arange(len(row)) - draft.offsets[row] + 1
    tokens[row, node] = draft.tokens
    parents[row, node] = draft.parents + 1
    linked = _linked(tokens, parents)
    linked.child[np.arange(rows), counts] = -1  # detach the padding from the last drafted node
    return linked


def _linked(tokens: Ints, parents: Ints) -> TreeRows:
    rows, width = parents.shape
    row = np.arange(rows)
    seen = np.zeros((rows, width, width), bool)
    depths = np.zeros((rows, width), np.int64)
    child = np.full((rows, width), -1, np.int64)
    sibling = np.full((rows, width), -1, np.int64)
    seen[:, 0, 0] = True
    # Parents come before children, so one pass down fills depths, and one pass up links children in order.
    for node in range(1, width):
        parent = parents[:, node]
        seen[:, node] = seen[row, parent]
        seen[:, node, node] = True
        depths[:, node] = depths[row, parent] + 1
    for node in range(width - 1, 0, -1):
        parent = parents[:, node]
        sibling[:, node] = child[row, parent]
        child[row, parent] = node
    return TreeRows(tokens=tokens, seen=seen, depths=depths, child=child, sibling=sibling)


def tree_tensors(rows: TreeRows, lengths: torch.Tensor, device: Any) -> list[torch.Tensor]:
    """Return tokens and positions, flat, and indices, first children and next siblings, shape (rows, width).

    ``lengths`` is the number of tokens before each tree, shape (rows,).
    """
    order = np.arange(rows.tokens.size).reshape(rows.tokens.shape)
    tokens, depths, indices, child, sibling = (
        torch.from_numpy(array).to(device, non_blocking=True)
        for array in (rows.tokens, rows.depths, order, rows.child, rows.sibling)
    )
    return [tokens.reshape(-1), (depths + lengths[:, None]).reshape(-1), indices, child, sibling]


def full_mask(rows: TreeRows, lengths: np.ndarray, device: Any, *, batch: int = 0) -> torch.Tensor:
    """Return the attention mask: flags of shape (width, length + width) per row, concatenated.

    In each row of flags, the earlier tokens come first, then the tree. SGLang 0.5.12 pads a batch to the next captured
    size with requests of one token, and does not extend the mask (``replay_prepare`` of its ``cuda_graph_runner``).
    FlashInfer then reads (width, 1 + width) flags for each of them. So the mask has these flags too, up to ``batch``
    requests.
    """
    width = rows.width
    padding = max(0, batch - len(lengths)) * width * (1 + width)
    # Start from all ones and clear the unseen nodes: the host then computes only the tree's part of the mask.
    begin = width * (np.cumsum(lengths) - lengths) + width * width * np.arange(len(lengths))
    node = np.arange(width)
    flag_index = (begin + lengths)[:, None, None] + (lengths[:, None] + width)[:, :, None] * node[:, None] + node
    mask = torch.ones(int(width * lengths.sum()) + rows.seen.size + padding, dtype=torch.bool, device=device)
    unseen = torch.from_numpy(flag_index[~rows.seen]).to(device, non_blocking=True)
    mask[unseen] = False
    return mask
