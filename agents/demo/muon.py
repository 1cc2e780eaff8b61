"""Muon in float32.

``torch.optim.Muon`` computes in bfloat16, which is many times slower on CPUs without bfloat16 units.
K. Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). The update is scaled to match
AdamW's as in J. Liu et al., "Muon is scalable for LLM training" (2025), section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

_COEFFICIENTS = 3.4445, -4.7750, 2.0315  #: of the quintic polynomial that drives all singular values towards 1
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Momentum SGD whose update of each matrix is orthogonalised, with decoupled weight decay."""

    def __init__(self, matrices: Iterable[Tensor], *, lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                average = self.state[matrix].setdefault("average", torch.zeros_like(matrix))
                average.lerp_(matrix.grad, 1 - group["momentum"])
                # Nesterov momentum.
                update = orthogonal(matrix.grad.lerp(average, group["momentum"]))
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * 0.2 * max(matrix.shape) ** 0.5)


def orthogonal(matrix: Tensor) -> Tensor:
    """Approximate the nearest orthogonal matrix; singular values end up between 0.6 and 1.3.

    Args:
        matrix: Shape (rows, columns).
    """
    a, b, c = _COEFFICIENTS
    wide: Tensor = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / (wide.norm() + 1e-7)
    for _ in range(_ITERATIONS):
        square = wide @ wide.T
        wide = a * wide + (b * square + c * square @ square) @ wide
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide
