"""The policy's distributions in a step, at each row's last token and at its nodes (draft tokens), after transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turntree.agents.engines.drafting.transforms import Transforms, tempered, transform
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.protocol import Sampling
from turntree.spec_tree import DraftBatch
from turntree.spec_tree.rules.verify import root

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: numbers processed at once in sums that read them several times, so that they stay in the CPU's cache
_IN_CACHE = 1 << 17


class _Seen(NamedTuple):
    sampling: Sampling
    tokens: Ints  #: tokens of prompt, turn and draft, each once, shape (seen,)
    asked: NDArray[np.bool_]  #: whether each occurs in the prompt, shape (seen,)
    sampled: Ints  #: count of each up to the turn's last token, then up to each node, shape (1 + nodes, seen)


class Penalties:
    """Repetition, presence and frequency penalties of the requests of one step; falsy if no request has any.

    A node's logits are penalised by the tokens before it: the prompt (for the repetition penalty), the sampled tokens
    of the turn, and the path to the node. Order and meaning are vLLM's.
    """

    def __init__(self, rows: Sequence[Request], draft: DraftBatch) -> None:
        self.roots = root(draft)  #: index of each row's last token, shape (rows,)
        self._seen = {
            b: _seen(request, draft, b) for b, request in enumerate(rows) if penalises(request.sampling)
        }  # fmt: skip

    def __bool__(self) -> bool:
        return bool(self._seen)

    def apply(self, logits: Tensor, rows: Ints, nodes: Ints) -> Tensor:
        """Return penalised logits, shape (n, vocabulary): row i is at ``nodes[i]`` of the request ``rows[i]``.

        ``nodes`` counts last tokens, too, as in ``spec_tree.rules.verify.root``.
        """
        if not self._seen:
            return logits
        # Only tokens that occur are touched, so the cost does not grow with the vocabulary.
        logits = logits.clone()
        for b, seen in self._seen.items():
            mine = np.flatnonzero(rows == b)
            if len(mine):
                at = torch.from_numpy(mine).to(logits.device)[:, None]
                tokens = torch.from_numpy(seen.tokens).to(logits.device)[None]
                logits[at, tokens] = _penalised(logits[at, tokens], seen, nodes[mine] - self.roots[b])
        return logits


def penalises(sampling: Sampling) -> bool:
    return (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1, 0, 0)


def _seen(request: Request, draft: DraftBatch, row: int) -> _Seen:
    nodes = slice(int(draft.offsets[row]), int(draft.offsets[row + 1]))
    drafted, parents = draft.tokens[nodes].astype(np.int64), draft.parents[nodes]
    turn = np.array(request.tokens[len(request.prompt) :], np.int64)
    tokens = np.unique(np.concatenate([np.array(request.prompt, np.int64), turn, drafted]))
    asked = np.isin(tokens, request.prompt)
    sampled = np.zeros((1 + len(drafted), len(tokens)), np.int64)
    np.add.at(sampled[0], np.searchsorted(tokens, turn), 1)
    column = np.searchsorted(tokens, drafted)
    for node, parent in enumerate(parents.tolist()):
        sampled[node + 1] = sampled[parent + 1]
        sampled[node + 1, column[node]] += 1
    return _Seen(request.sampling, tokens, asked, sampled)


def _penalised(logits: Tensor, seen: _Seen, nodes: Ints) -> Tensor:
    sampled = torch.from_numpy(seen.sampled[nodes]).to(logits.device)
    occurs = sampled > 0
    repeated = occurs | torch.from_numpy(seen.asked).to(logits.device)
    factor = seen.sampling.repetition_penalty
    logits = torch.where(repeated, torch.where(logits > 0, logits / factor, logits * factor), logits)
    logits = logits - seen.sampling.frequency_penalty * sampled.to(logits.dtype)
    return logits - seen.sampling.presence_penalty * occurs.to(logits.dtype)


class Top(NamedTuple):
    """The most probable tokens at some nodes, most probable first."""

    ids: NDArray[np.int32]  #: shape (nodes, k)
    logprobs: NDArray[np.float32]  #: shape (nodes, k)


class NodeDistributions:
    """Distributions at each row's last token and nodes, in the layout of ``spec_tree.rules.verify.root``.

    Args:
        logits: The model's output, shape (rows + nodes, vocabulary).
    """

    def __init__(self, rows: Sequence[Request], draft: DraftBatch, logits: Tensor) -> None:
        if logits.dtype not in (torch.float32, torch.float64):
            logits = logits.float()
        self.logits = logits
        #: index of the request of each last token or node, shape (rows + nodes,)
        self.rows = np.repeat(np.arange(len(rows)), np.diff(draft.offsets) + 1)
        self._penalties = Penalties(rows, draft)
        self._transforms = Transforms.of([r.sampling for r in rows], logits)
        #: whether every distribution is the policy's at its temperature, without another transform
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
