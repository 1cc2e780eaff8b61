"""Repetition, presence and frequency penalties at every node of a draft.

A node's logits are penalised by the tokens before it: the prompt (for the repetition penalty), the sampled tokens
of the turn, and the path to the node. Only tokens that occur are touched, so the cost does not grow with the
vocabulary. Order and meaning are vLLM's: repetition, then frequency, then presence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turntree.agents.engines.local.request import Request
from turntree.agents.engines.protocol import Sampling
from turntree.spec_tree import DraftBatch
from turntree.spec_tree.rules.verify import root

Ints = NDArray[np.int64]


class _Seen(NamedTuple):
    sampling: Sampling
    tokens: Ints  #: tokens that occur at any node, shape (seen,)
    asked: NDArray[np.bool_]  #: whether each occurs in the prompt, shape (seen,)
    sampled: Ints  #: count of each in the turn, at its last token and then at its nodes, shape (1 + nodes, seen)


class Penalties:
    """Penalties of the requests of one step; falsy if no request has any."""

    def __init__(self, rows: Sequence[Request], draft: DraftBatch) -> None:
        self.roots = root(draft)  #: index of each row's last token, shape (rows,)
        self._seen = {
            b: _seen(request, draft, b) for b, request in enumerate(rows) if penalises(request.sampling)
        }  # fmt: skip

    def __bool__(self) -> bool:
        return bool(self._seen)

    def apply(self, logits: Tensor, rows: Ints, nodes: Ints) -> Tensor:
        """Return penalised logits.

        Args:
            logits: Shape (n, vocabulary); not modified.
            rows: Request of each, shape (n,).
            nodes: Index of each among rows and nodes, see ``spec_tree.rules.verify.root``, shape (n,).
        """
        if not self._seen:
            return logits
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
