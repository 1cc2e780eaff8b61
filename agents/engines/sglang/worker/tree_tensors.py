"""Conversion of padded trees to the tensors that SGLang's verification reads, and of its counts to numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from turntree.agents.engines.sglang.worker.rows import TreeRows


def tree_tensors(rows: TreeRows, lengths: torch.Tensor, device: Any) -> list[torch.Tensor]:
    """Flat tokens and positions, and indices, first children and next siblings of shape (rows, width).

    Args:
        rows: The trees.
        lengths: Tokens before each tree, shape (rows,).
        device: Device of the tensors.
    """
    order = np.arange(rows.tokens.size).reshape(rows.tokens.shape)
    tokens, depths, places, child, sibling = (
        torch.from_numpy(array).to(device, non_blocking=True)
        for array in (rows.tokens, rows.depths, order, rows.child, rows.sibling)
    )
    return [tokens.reshape(-1), (depths + lengths[:, None]).reshape(-1), places, child, sibling]


def full_mask(rows: TreeRows, lengths: np.ndarray, device: Any) -> torch.Tensor:
    """Each row's (width, length + width) flags, one row after the other: all earlier tokens, and the tree.

    Args:
        rows: The trees.
        lengths: Tokens before each tree, shape (rows,).
        device: Device of the mask.
    """
    width = rows.width
    begin = width * (np.cumsum(lengths) - lengths) + width * width * np.arange(len(lengths))
    node = np.arange(width)
    at = (begin + lengths)[:, None, None] + (lengths[:, None] + width)[:, :, None] * node[:, None] + node
    mask = torch.ones(int(width * lengths.sum() + rows.seen.size), dtype=torch.bool, device=device)
    unseen = torch.from_numpy(at[~rows.seen]).to(device, non_blocking=True)
    mask[unseen] = False
    return mask


class Numbers:
    """A pass's device numbers as Python ones, for JSON over HTTP: SGLang reads a row at a time once the pass is done,
    and the device is waited for once."""

    def __init__(self, values: torch.Tensor) -> None:
        self._values: torch.Tensor | None = values
        self._numbers: list[int] = []

    def __getitem__(self, row: int) -> int:
        if self._values is not None:
            self._numbers, self._values = self._values.tolist(), None
        return self._numbers[row]
