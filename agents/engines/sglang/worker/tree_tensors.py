"""Conversion of padded trees to the tensors that SGLang's verification reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from turntree.agents.engines.sglang.worker.rows import TreeRows


def tree_tensors(rows: TreeRows, lengths: torch.Tensor, device: Any) -> list[torch.Tensor]:
    """Flat tokens and positions, and indices, first children and next siblings of shape (rows, width).

    Args:
        lengths: Tokens before each tree, shape (rows,).
    """
    order = np.arange(rows.tokens.size).reshape(rows.tokens.shape)
    tokens, depths, places, child, sibling = (
        torch.from_numpy(array).to(device, non_blocking=True)
        for array in (rows.tokens, rows.depths, order, rows.child, rows.sibling)
    )
    return [tokens.reshape(-1), (depths + lengths[:, None]).reshape(-1), places, child, sibling]


def full_mask(rows: TreeRows, lengths: np.ndarray, device: Any, *, batch: int = 0) -> torch.Tensor:
    """Each row's (width, length + width) flags, one row after the other: all earlier tokens, and the tree.

    SGLang 0.5.12 pads a batch to the next size that it has a graph for, with rows of one token, and leaves the mask
    as it came (``replay_prepare`` of its ``cuda_graph_runner``); FlashInfer then reads (width, 1 + width) flags a row
    beyond its end.

    Args:
        lengths: Tokens before each tree, shape (rows,).
        batch: Rows to which the batch may be padded; the mask ends with flags for those that are missing.
    """
    width = rows.width
    padding = max(0, batch - len(lengths)) * width * (1 + width)
    begin = width * (np.cumsum(lengths) - lengths) + width * width * np.arange(len(lengths))
    node = np.arange(width)
    at = (begin + lengths)[:, None, None] + (lengths[:, None] + width)[:, :, None] * node[:, None] + node
    mask = torch.ones(int(width * lengths.sum()) + rows.seen.size + padding, dtype=torch.bool, device=device)
    unseen = torch.from_numpy(at[~rows.seen]).to(device, non_blocking=True)
    mask[unseen] = False
    return mask
