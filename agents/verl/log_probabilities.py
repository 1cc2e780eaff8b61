"""Log-probabilities of chosen tokens; of tensors as large as the logits, only the gradient is allocated.

Autograd alone allocates five: 400 MB each in float32 for a vocabulary of 49,152 and 2,048 tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_LOGITS = 1 << 23  #: logits of a chunk; 32 MB in float32


class ChosenLogProbabilities(torch.autograd.Function):
    """``apply(logits, labels)`` returns each label's float32 log-probability, in the labels' shape.

    The gradient with respect to the logits is the label's one-hot vector minus the softmax. Both are computed in chunks
    of rows; a small policy needs one chunk.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        """Take logits of shape (..., vocabulary) and labels of shape (...)."""
        rows, chosen = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1, 1)
        totals = torch.cat([rows[part].float().logsumexp(-1) for part in _chunks(rows)])
        ctx.save_for_backward(rows, chosen, totals)
        ctx.shape = logits.shape
        return (rows.gather(-1, chosen)[:, 0].float() - totals).view(labels.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        rows, chosen, totals = ctx.saved_tensors
        weights = gradients[0].reshape(-1, 1).float()
        gradient = torch.empty_like(rows)
        for part in _chunks(rows):
            softmax = (rows[part].float() - totals[part, None]).exp_().mul_(-weights[part])
            gradient[part] = softmax.scatter_add_(-1, chosen[part], weights[part])
        return gradient.view(ctx.shape), None


def _chunks(rows: Tensor) -> Iterator[slice]:
    size = max(1, _LOGITS // rows.shape[-1])
    yield from (slice(at, at + size) for at in range(0, max(1, len(rows)), size))
