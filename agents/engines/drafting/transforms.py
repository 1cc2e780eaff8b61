"""Sampling transforms in PyTorch: temperature, min-p, top-k, top-p, in this order and with vLLM's meanings.

Temperature 0 keeps only the most probable token. ``turntree.spec_tree.rules.transforms`` is the NumPy reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from turntree.agents.engines.protocol import Sampling


class Transforms(NamedTuple):
    """Sampling parameters of each row, tensors of shape (rows,); penalties are ``Penalties``."""

    temperature: Tensor  #: 0 is greedy
    top_k: Tensor  #: int64, -1 keeps all
    top_p: Tensor  #: 1 keeps all
    min_p: Tensor  #: 0 keeps all
    greedy: bool  #: whether any row is greedy
    sorts: bool  #: whether any row uses top-k or top-p
    floors: bool  #: whether any row uses min-p

    @classmethod
    def of(cls, samplings: Sequence[Sampling], like: Tensor) -> Transforms:
        """Return the parameters of some requests, on the device and with the dtype of ``like``."""
        device, dtype = like.device, like.dtype
        return cls(
            temperature=torch.tensor([s.temperature for s in samplings], dtype=dtype, device=device),
            top_k=torch.tensor([s.top_k for s in samplings], device=device),
            top_p=torch.tensor([s.top_p for s in samplings], dtype=dtype, device=device),
            min_p=torch.tensor([s.min_p for s in samplings], dtype=dtype, device=device),
            greedy=any(s.temperature == 0 for s in samplings),
            sorts=any(s.top_k > 0 or s.top_p < 1 for s in samplings),
            floors=any(s.min_p > 0 for s in samplings),
        )

    def at(self, rows: Tensor) -> Transforms:
        return self._replace(
            temperature=self.temperature[rows], top_k=self.top_k[rows], top_p=self.top_p[rows], min_p=self.min_p[rows]
        )

    @property
    def tempers_alone(self) -> bool:
        # whether no row has a transform other than a positive temperature
        return not (self.greedy or self.sorts or self.floors)


def tempered(logits: Tensor, transforms: Transforms) -> Tensor:
    """Return logits divided by the temperature (by 1 if greedy), shape (rows, vocabulary)."""
    temperature = transforms.temperature
    if transforms.greedy:
        temperature = temperature.where(temperature > 0, 1)
    return logits / temperature[:, None]


def transform(logits: Tensor, transforms: Transforms) -> Tensor:
    """Return logits whose softmax is the distribution to draw from, minus infinity where it is zero.

    ``logits`` are float32 or float64 after penalties, shape (rows, vocabulary).
    """
    scaled = tempered(logits, transforms)
    if transforms.floors:
        # Keep p >= min_p * max p, written in logits.
        floor = scaled.amax(-1, keepdim=True) + transforms.min_p.log()[:, None]
        scaled = scaled.masked_fill(scaled < floor, float("-inf"))
    if transforms.sorts:
        scaled = scaled.masked_fill(~_kept(scaled, transforms.top_k, transforms.top_p), float("-inf"))
    if transforms.greedy:
        best = logits.argmax(-1, keepdim=True)
        alone = torch.full_like(scaled, float("-inf")).scatter_(-1, best, 0.0)
        scaled = torch.where(transforms.temperature[:, None] > 0, scaled, alone)
    return scaled


def _kept(logits: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    # top-k, then top-p; the token at which the mass reaches ``top_p`` stays
    probabilities, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(logits.shape[-1], device=logits.device)
    limit = torch.where(top_k > 0, top_k, logits.shape[-1])[:, None]
    probabilities = probabilities.where(rank < limit, 0)
    mass = probabilities.sum(-1, keepdim=True)
    before = probabilities.cumsum(-1) - probabilities
    keep = (rank < limit) & ((before < top_p[:, None] * mass) | (top_p[:, None] >= 1) | (rank == 0))
    return torch.zeros_like(keep).scatter(-1, order, keep)
