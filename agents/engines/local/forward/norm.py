"""Root-mean-square norms on the CPU as one call of PyTorch, with the same bits.

``transformers`` writes them as six operations, each called from Python: of a step's few rows that is a twentieth of the
time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call


class RmsNorm(nn.Module):
    """A norm whose numbers ``torch.nn.functional.rms_norm`` computes."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        """Share ``weight``, shape (size,); ``epsilon`` is added to the mean square."""
        super().__init__()
        self.weight, self._epsilon = weight, epsilon

    def forward(self, rows: Tensor) -> Tensor:
        """The rows, shape (..., size), scaled to a mean square of one and by the weight."""
        return nn.functional.rms_norm(rows, self.weight.shape, self.weight, self._epsilon)


def join_norms(model: nn.Module) -> None:
    """Put ``RmsNorm`` in the place of a model's norms that have its bits on rows and weights drawn at random."""
    noise = torch.Generator().manual_seed(0)
    for place, layer in list(model.named_modules()):
        weight, epsilon = getattr(layer, "weight", None), getattr(layer, "variance_epsilon", None)
        if isinstance(weight, nn.Parameter) and isinstance(epsilon, float) and weight.dim() == 1:
            new = RmsNorm(weight, epsilon)
            drawn = torch.randn(4, len(weight), dtype=weight.dtype, generator=noise)
            old_rows, new_rows = (functional_call(one, {"weight": drawn[0]}, (drawn,)) for one in (layer, new))
            if torch.equal(old_rows, new_rows):
                model.set_submodule(place, new)
