"""Attention of short rows on the CPU, compiled: one call a layer, whatever slots the rows have.

Invariant: what a token gets depends on its own row alone; the rest of the batch changes no bit of it. Nothing is
padded, gathered or masked: each token reads the columns of its slot that it sees, where they lie.

Not here: rows of many new tokens, other devices and half precision, for which ``attention`` has segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]

DTYPES = (torch.float32, torch.float64)
"""What the loops compute with."""
_REORDERED = {"reassoc", "contract", "arcp", "nsz"}
"""Liberties of the compiler: sums in another order, but infinities and NaN stay what they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRows:
    """The tokens of short rows, and the columns that each sees: those before ``until``, and some single ones."""

    flat: Ints
    """Their places in the flattened step, shape (n,)."""
    slots: Ints
    """Slot of each, shape (n,)."""
    until: Ints
    """Columns that each sees from the first on, shape (n,)."""
    positions: Ints
    """Position of each in its sequence, shape (n,)."""
    start: Ints
    """First single column of each, and the end of the last, shape (n + 1,)."""
    single: Ints
    """Columns that are seen beside the leading ones, shape (singles,)."""
    single_positions: Ints
    """Their positions, ascending for each token, shape (singles,)."""

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mixed: Tensor, *, scale: float, window: int | None
    ) -> None:
        """Fill in these tokens' rows of ``mixed``.

        Args:
            query: Shape (tokens, heads, size).
            keys: Shape (slots, key heads, columns, size).
            values: Shape (slots, key heads, columns, value size).
            mixed: Shape (tokens, heads, value size).
            scale: Factor of the scores.
            window: Positions that a token sees, itself included; ``None`` for all.
        """
        asked = query.contiguous().numpy()
        _attend(
            asked, keys.numpy(), values.numpy(), mixed.numpy(), asked.dtype.type(scale), window or 0, self.flat,
            self.slots, self.until, self.positions, self.start, self.single, self.single_positions,
        )  # fmt: skip


def write(kept: Tensor, new: Tensor, slots: Ints, columns: Ints) -> None:
    """Write new keys or values to their places.

    Args:
        kept: Shape (slots, key heads, columns, size).
        new: Shape (tokens, key heads, size).
        slots: Slot of each token, shape (tokens,).
        columns: Column of each token, shape (tokens,).
    """
    _write(kept.numpy(), new.contiguous().numpy(), slots, columns)


@njit(nogil=True, cache=True, fastmath=_REORDERED)
def _attend(
    query: Any, keys: Any, values: Any, mixed: Any, scale: Any, window: Any,
    flat: Any, slots: Any, until: Any, positions: Any, start: Any, single: Any, single_positions: Any,
) -> None:  # fmt: skip
    groups = query.shape[1] // keys.shape[1]
    zero = scale - scale  # of the tensors' own precision, as all that follows
    columns = np.empty(keys.shape[2], np.int64)
    scores = np.empty(keys.shape[2], keys.dtype)
    for n in range(len(flat)):
        lowest = positions[n] - window + 1 if window > 0 else 0
        first = max(lowest, 0)
        seen = 0
        for column in range(first, until[n]):
            columns[seen] = column
            seen += 1
        for i in range(start[n], start[n + 1]):
            if single_positions[i] >= lowest:
                columns[seen] = single[i]
                seen += 1
        for head in range(query.shape[1]):
            asked, out = query[flat[n], head], mixed[flat[n], head]
            key, value = keys[slots[n], head // groups], values[slots[n], head // groups]
            for j in range(seen):
                row, score = key[columns[j]], zero
                for d in range(len(asked)):
                    score += asked[d] * row[d]
                scores[j] = score * scale
            most = scores[0]
            for j in range(1, seen):
                most = max(most, scores[j])
            total = zero
            for j in range(seen):
                scores[j] = np.exp(scores[j] - most)
                total += scores[j]
            out[:] = zero
            for j in range(seen):
                row, weight = value[columns[j]], scores[j] / total
                for d in range(len(out)):
                    out[d] += weight * row[d]


@njit(nogil=True, cache=True)
def _write(kept: Any, new: Any, slots: Any, columns: Any) -> None:
    for n in range(len(slots)):
        for head in range(new.shape[1]):
            to, row = kept[slots[n], head, columns[n]], new[n, head]
            for d in range(len(row)):
                to[d] = row[d]
