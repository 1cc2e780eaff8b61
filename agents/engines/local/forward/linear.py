"""Linear layers on the CPU, for a step's few rows.

``torch.nn.functional.linear`` is at its slowest between 2 and some 16 rows, where it can take three times as long as
with one; a weight in oneDNN's blocks is read at the speed of memory. Both sum the same products in another order.

Not here: small weights, where a call of oneDNN costs more than the product; other devices, half and double precision.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor, nn

BLOCKED = 100_000
"""Numbers of a weight from which blocks pay."""
_ROWS = 16
"""Rows that the blocks are laid out for."""


class Blocked(nn.Module):
    """A linear layer whose weight lies in oneDNN's blocks.

    The dense weight is given up unless another layer has it too: what is left of it keeps its shape, reads as NaN and
    cannot be copied to.
    """

    def __init__(self, layer: nn.Linear, *, shared: bool) -> None:
        """Take the place of ``layer``; ``shared`` says whether another layer has its weight too."""
        super().__init__()
        dense, self.bias, self._shared = layer.weight, layer.bias, shared
        nothing = torch.full((1, 1), float("nan"), dtype=dense.dtype).expand(dense.shape)
        self.weight = dense if shared else nn.Parameter(nothing, requires_grad=False)
        with torch.no_grad():
            self._blocks = _blocks_of(dense)

    def forward(self, rows: Tensor) -> Tensor:
        """The products of ``rows``, shape (..., in), with the weight."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._blocks, self.bias, "none", [], "")
        return product

    def fill(self, weight: Tensor) -> None:
        """Take over the numbers of ``weight``, shape (out, in)."""
        dense = weight.detach().to(self.weight)
        self._blocks.copy_(_blocks_of(dense))  # in place: new ones each time would leave holes in the heap
        if self._shared:
            self.weight.copy_(dense)


def block(model: nn.Module) -> dict[str, list[Blocked]]:
    """Put ``Blocked`` in the place of a model's large linear layers, where oneDNN is there.

    Args:
        model: On the CPU. Plain ``nn.Linear`` layers in single precision change; subclasses do not.

    Returns:
        The layers to fill when a weight is written, by the names that it has in ``state_dict``.
    """
    names: dict[int, list[str]] = defaultdict(list)
    for name, weight in model.named_parameters(remove_duplicate=False):
        names[id(weight)].append(name)
    blocked: dict[str, list[Blocked]] = defaultdict(list)
    for place, layer in list(model.named_modules()):
        if isinstance(layer, Blocked):
            known, new = names[id(layer.weight)], layer
        elif type(layer) is nn.Linear and _pays(layer.weight):
            known = names[id(layer.weight)]
            new = Blocked(layer, shared=len(known) > 1)
            model.set_submodule(place, new)
        else:
            continue
        for name in known:
            blocked[name].append(new)
    if blocked:
        _let_go(model)
    return dict(blocked)


def _blocks_of(weight: Tensor) -> Tensor:
    blocks: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)
    return blocks


def _let_go(model: nn.Module) -> None:
    """Copy what is dense still: one weight that lies in a mapped file would keep the pages of all in memory."""
    for weight in model.parameters():
        if weight.is_contiguous():  # the rest of a weight that was given up is not
            weight.data = weight.data.clone()


def _pays(weight: Tensor) -> bool:
    return weight.numel() >= BLOCKED and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()
