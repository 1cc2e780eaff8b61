"""Cache of keys and values, written in place: one slot per running sequence, or finished one kept for reuse (parked).

The columns of a slot are the tokens of its sequence in order. A layer of the cache is allocated when the model first
reaches that layer, with the shapes of its keys and values, so that any decoder fits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class SlotCache:
    def __init__(self, slots: int, columns: int) -> None:
        self.slots = slots
        self.columns = columns
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}  #: keys and values of the layers that the model has reached

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer, shape (slots, key heads, columns, size) each.

        The new ``key`` and ``value``, shape (1, key heads, tokens, size), give shape, dtype and device of a new layer.
        """
        pair = self.layers.get(index)
        if pair is None:
            pair = (
                key.new_zeros(self.slots, key.shape[1], self.columns, key.shape[3]),
                value.new_zeros(self.slots, value.shape[1], self.columns, value.shape[3]),
            )
            self.layers[index] = pair
        return pair

    def copy(self, source: int, targets: Sequence[int], length: int) -> None:
        for pair in self.layers.values():
            for layer in pair:
                at = targets[0] if len(targets) == 1 else torch.tensor(targets, device=layer.device)
                layer[at, :, :length] = layer[source, :, :length]

    def move(self, slots: Tensor, source: Tensor, target: Tensor) -> None:
        """Move single columns, all at once: column ``source[i]`` of ``slots[i]`` goes to ``target[i]``.

        All arguments are int64 of shape (n,).
        """
        for keys, values in self.layers.values():
            keys[slots, :, target] = keys[slots, :, source]
            values[slots, :, target] = values[slots, :, source]

    @property
    def bytes(self) -> int:
        return sum(t.element_size() * t.nelement() for pair in self.layers.values() for t in pair)
