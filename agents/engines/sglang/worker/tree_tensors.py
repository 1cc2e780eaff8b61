from __future__ import annotations

from typing import Any

import numpy as np
import torch

from turntree.agents.engines.sglang.worker.rows import TreeRows


def tree_tensors(rows: TreeRows, lengths: torch.Tensor, device: Any) -> list[torch.Tensor]:
    """Return flat tokens and positions, and indices, first children and next siblings (rows, width).

    Args:
        rows: The trees.
        lengths: Tokens before each tree, shape (rows,).
        device: Device of the tensors.
    """
    order = np.arange(rows.tokens.size).reshape(rows.tokens.shape)
    tokens, depths, indices, child, sibling = (
        torch.from_numpy(array).to(device, non_blocking=True)
        for array in (rows.tokens, rows.depths, order, rows.child, rows.sibling)
    )
    return [tokens.reshape(-1), (depths + lengths[:, None]).reshape(-1), indices, child, sibling]


def full_mask(rows: TreeRows, lengths: np.ndarray, device: Any, *, batch: int = 0) -> torch.Tensor:
    """Return each row's (width, length + width) flags, one row after the other: all earlier tokens, and the tree.

    SGLang 0.5.12 pads a batch with rows of one token to the next captured size and leaves the mask as it is
    (``replay_prepare`` of its ``cuda_graph_runner``); FlashInfer then reads (width, 1 + width) flags per padding row.

    Args:
        rows: The trees.
        lengths: Tokens before each tree, shape (rows,).
        device: Device of the mask.
        batch: Rows to which the batch may be padded; the mask ends with flags for the missing ones.
    """
    width = rows.width
    padding = max(0, batch - len(lengths)) * width * (1 + width)
    # Start from all ones and clear the unseen nodes: only the tree's part of the mask is computed on the host.
    begin = width * (np.cumsum(lengths) - lengths) + width * width * np.arange(len(lengths))
    node = np.arange(width)
    at = (begin + lengths)[:, None, None] + (lengths[:, None] + width)[:, :, None] * node[:, None] + node
    mask = torch.ones(int(width * lengths.sum()) + rows.seen.size + padding, dtype=torch.bool, device=device)
    unseen = torch.from_numpy(at[~rows.seen]).to(device, non_blocking=True)
    mask[unseen] = False
    return mask
