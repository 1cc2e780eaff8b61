"""Log-probabilities of chosen tokens with little memory: only the gradient is as large as the logits.

Plain autograd allocates five tensors of that size. With a vocabulary of 49,152 and 2,048 tokens, each takes 400 MB in
float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_CHUNK_LOGITS = 1 << 23
"""Number of logits in a chunk; 32 MB in float32."""


class ChosenLogProbabilities(torch.autograd.Function):
    """``apply(logits, labels)`` returns the log-probability of each label, float32, in the shape of ``labels``.

    The gradient of a log-probability with respect to the logits is the label's one-hot vector minus the softmax. Both
    passes work on chunks of rows; a small policy needs only one chunk.
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
        """Return the gradient of the logits, in the dtype of the logits."""
        rows, chosen, totals = ctx.saved_tensors
        weights = gradients[0].reshape(-1, 1).float()
        gradient = torch.empty_like(rows)
        for part in _chunks(rows):
            softmax = (rows[part].float() - totals[part, None]).exp_().mul_(-weights[part])
            gradient[part] = softmax.scatter_add_(-1, chosen[part], weights[part])
        return gradient.view(ctx.shape), None


def _chunks(rows: Tensor) -> Iterator[slice]:
    size = max(1, _CHUNK_LOGITS // rows.shape[-1])
    yield from (slice(start, start + size) for start in range(0, max(1, len(rows)), size))
