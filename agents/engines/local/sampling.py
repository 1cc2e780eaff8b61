"""Drawing tokens: the policy's transforms, then one counter-based uniform a token.

A token is drawn by inverting the cumulative distribution at a uniform that
depends on the request's seed and the token's position alone, so a draw is the
same whatever the batch and the draft. Transforms are temperature, top-k and
top-p, in that order, as in vLLM.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Drawn(NamedTuple):
    """One token a row."""

    tokens: Tensor
    """int64, shape (rows,)."""
    logprobs: Tensor
    """Log-probability at the row's temperature, before top-k and top-p, shape (rows,)."""


class Transforms(NamedTuple):
    """Sampling parameters of each row, tensors of shape (rows,)."""

    temperature: Tensor
    """0 is greedy."""
    top_k: Tensor
    """int64, -1 keeps all."""
    top_p: Tensor
    """1 keeps all."""
    greedy: bool
    """Whether some row is greedy."""
    truncates: bool
    """Whether some row uses top-k or top-p."""

    def at(self, rows: Tensor) -> Transforms:
        """The parameters of the given rows, index tensor of shape (n,)."""
        return Transforms(self.temperature[rows], self.top_k[rows], self.top_p[rows], self.greedy, self.truncates)


def truncate(logprobs: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Probabilities after top-k and top-p, zero outside, not renormalised.

    Args:
        logprobs: Shape (rows, vocabulary).
        top_k: Tokens kept per row, -1 for all, shape (rows,).
        top_p: Mass kept per row; the token that crosses it stays, shape (rows,).
    """
    probabilities, order = logprobs.exp().sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logprobs.shape[-1], device=logprobs.device)
    limit = torch.where(top_k > 0, top_k, logprobs.shape[-1])[:, None]
    probabilities = probabilities.where(rank < limit, 0)
    mass = probabilities.sum(-1, keepdim=True)
    before = probabilities.cumsum(-1) - probabilities
    keep = (before < top_p[:, None] * mass) | (rank == 0)
    return torch.zeros_like(probabilities).scatter(-1, order, probabilities.where(keep, 0))


def draw(logits: Tensor, transforms: Transforms, uniforms: Tensor) -> Drawn:
    """Draw one token a row.

    Args:
        logits: Shape (rows, vocabulary).
        transforms: Sampling parameters of the rows.
        uniforms: float64 in (0, 1), shape (rows,).
    """
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    greedy = transforms.temperature == 0
    temperature = transforms.temperature.to(logits.dtype)
    if transforms.greedy:
        temperature = temperature.where(~greedy, 1)
    logprobs = torch.log_softmax(logits / temperature[:, None], -1)
    if transforms.truncates:
        probabilities = truncate(logprobs, transforms.top_k, transforms.top_p)
    else:
        probabilities = logprobs.exp()
    cumulative = probabilities.cumsum(-1, dtype=torch.float64)
    target = uniforms[:, None] * cumulative[:, -1:]
    tokens = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    if transforms.greedy:
        tokens = torch.where(greedy, logits.argmax(-1), tokens)
    return Drawn(tokens, logprobs.gather(-1, tokens[:, None])[:, 0])
