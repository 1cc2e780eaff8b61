"""The policy's distributions at the nodes of a step, after every transform and with the node's path as context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turntree.agents.engines.drafting.transforms import Transforms, tempered, transform
from turntree.agents.engines.local.penalties import Penalties
from turntree.agents.engines.local.request import Request
from turntree.spec_tree import DraftBatch

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: numbers processed at once where several passes go over them, so that they stay in the CPU's cache
_IN_CACHE = 1 << 17


class Top(NamedTuple):
    """The most probable tokens at some nodes, most probable first."""

    ids: NDArray[np.int32]  #: shape (nodes, k)
    logprobs: NDArray[np.float32]  #: shape (nodes, k)


class NodeDistributions:
    """Distributions at the rows and nodes of a step, in the layout of ``spec_tree.rules.verify.root``.

    Args:
        logits: The model's output, shape (rows + nodes, vocabulary).
    """

    def __init__(self, rows: Sequence[Request], draft: DraftBatch, logits: Tensor) -> None:
        if logits.dtype not in (torch.float32, torch.float64):
            logits = logits.float()
        self.logits = logits
        #: request of each row or node, shape (rows + nodes,)
        self.rows = np.repeat(np.arange(len(rows)), np.diff(draft.offsets) + 1)
        self._penalties = Penalties(rows, draft)
        self._transforms = Transforms.of([r.sampling for r in rows], logits)
        #: every distribution is the policy's at its temperature
        self.plain = self._transforms.tempers_alone and not self._penalties

    def at(self, nodes: Ints | None) -> Tensor:
        """Return logits at ``nodes`` (``None``: all), minus infinity where excluded, shape (nodes, vocabulary)."""
        logits, rows, transforms = self._picked(nodes)
        if self._penalties:
            logits = self._penalties.apply(logits, rows, np.arange(len(rows)) if nodes is None else nodes)
        return transform(logits, transforms)

    def policy_logprobs(self, nodes: Ints, tokens: Ints) -> Floats:
        """Return log-probabilities before penalties, min-p, top-k and top-p, shape (nodes,)."""
        logits, _, transforms = self._picked(nodes)
        return chosen_logprobs(tempered(logits, transforms), tokens)

    def _picked(self, nodes: Ints | None) -> tuple[Tensor, Ints, Transforms]:
        rows = self.rows if nodes is None else self.rows[nodes]
        device = self.logits.device
        logits = self.logits if nodes is None else self.logits[torch.from_numpy(nodes).to(device)]
        return logits, rows, self._transforms.at(torch.from_numpy(rows).to(device))


def chosen_logprobs(logits: Tensor, tokens: Ints) -> Floats:
    """Return the log-probability of one token per row, shape (rows,)."""
    chosen = logits.gather(-1, torch.from_numpy(tokens).to(logits.device)[:, None])[:, 0]
    return _array(chosen - logits.logsumexp(-1))


def entropies(probabilities: Tensor) -> tuple[Floats, Floats]:
    """Return entropy and variance of -log p of each row, nats and nats squared, shape (rows,) each."""
    rows = max(1, _IN_CACHE // probabilities.shape[-1])
    moments = torch.cat([_moments(some) for some in probabilities.split(rows)])
    entropy, second = _array(moments).T
    return entropy, np.maximum(second - entropy * entropy, 0.0)


def _moments(probabilities: Tensor) -> Tensor:
    logarithms = probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log_()
    weighted = probabilities * logarithms
    return torch.stack([-weighted.sum(-1), torch.linalg.vecdot(weighted, logarithms)], -1)


def most_probable(probabilities: Tensor, k: int) -> Top:
    values, ids = probabilities.topk(k, dim=-1)
    return Top(ids.to(torch.int32).cpu().numpy(), values.log().float().cpu().numpy())


def _array(tensor: Tensor) -> Floats:
    return tensor.double().cpu().numpy()
