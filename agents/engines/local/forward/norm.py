"""Root-mean-square norms on the CPU as one compiled loop.

``transformers`` writes them as six operations, each called from Python, which is a tenth of the time of a step of a few
rows. The loop sums the same squares in another order; what a row gets depends on that row alone.

Not here: other devices, half and double precision.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from turntree.agents.engines.local.forward.compiled import kernel


class RmsNorm(nn.Module):
    """A root-mean-square norm by the compiled loop; a row's result depends on that row alone."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        """Share ``weight``, shape (size,), which takes no gradient; ``epsilon`` is added to the mean square."""
        super().__init__()
        self.weight, self._epsilon = weight, np.float32(epsilon)

    def forward(self, rows: Tensor) -> Tensor:
        scaled = torch.empty(rows.shape)
        size = len(self.weight)
        flat = (one.view(-1, size).numpy() for one in (rows.contiguous(), scaled))
        _scale(*flat, self.weight.numpy(), self._epsilon)
        return scaled


def join_norms(model: nn.Module) -> None:
    """Replace those of a model's norms that ``RmsNorm`` reproduces on random rows and weights."""
    noise = torch.Generator().manual_seed(0)
    for place, layer in list(model.named_modules()):
        weight, epsilon = getattr(layer, "weight", None), getattr(layer, "variance_epsilon", None)
        if not isinstance(weight, nn.Parameter) or not isinstance(epsilon, float):
            continue
        if weight.dtype == torch.float32 and weight.dim() == 1:
            new = RmsNorm(weight, epsilon)
            rows = torch.randn(4, len(weight), generator=noise)
            old_rows, new_rows = (functional_call(one, {"weight": rows[0]}, (rows,)) for one in (layer, new))
            if torch.allclose(old_rows, new_rows, rtol=1e-4, atol=1e-6):
                model.set_submodule(place, new)


@kernel
def _scale(rows: Any, scaled: Any, weight: Any, epsilon: Any) -> None:
    size = rows.shape[1]
    for i in range(len(rows)):
        squares = rows.dtype.type(0)
        for d in range(size):
            squares += rows[i, d] * rows[i, d]
        factor = rows.dtype.type(1) / np.sqrt(squares / rows.dtype.type(size) + epsilon)
        for d in range(size):
            scaled[i, d] = rows[i, d] * factor * weight[d]
