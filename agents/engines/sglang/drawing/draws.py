"""Sampling of turntree's requests inside SGLang: sample, then match.

Every token, the first and those at the nodes of a draft tree alike, is the
winner of a race of exponential clocks under the distribution after all transforms
(min-p, top-k, top-p, as ``agents.engines.local`` has them). With a seed the
clocks depend on the seed, the position and the token alone, so that the sampled
tokens depend neither on the drafts nor on the batch, and a turn that was sampled
with the same seed is replayed by drafting it; without one they are fresh. The
draft tree is then walked along the drawn tokens. That is exact for any tree,
also with equal siblings, and accepts as much as any rule can that knows only
the tokens of a draft.

Other requests keep SGLang's own rules: its seeded sampler hashes (seed, position,
token) for plain decoding, but its verification of trees uses random numbers
independent of that noise (in 0.5.12 not even seeded), so a seeded turn would
depend on its drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turntree.agents.engines.drafting.race import race, race_of_logits
from turntree.agents.engines.drafting.transforms import Transforms, transform
from turntree.agents.engines.request_wire import given_of, is_reverified, noise_seed
from turntree.agents.engines.sglang.wire import is_ours
from turntree.spec_tree.rules.noise import shifted_seed


class Noises(NamedTuple):
    """The sources of the requests' noise, an array of shape (rows,) each."""

    ours: NDArray[np.bool_]
    """Whether a request is drawn here."""
    seeds: NDArray[np.uint64]
    """Shifted (``shifted_seed``); 0 for fresh noise."""
    fresh: NDArray[np.bool_]
    reverified: NDArray[np.bool_]
    """Whether tokens are drawn at the positions of its draft too (``reverify``)."""

    @classmethod
    def of(cls, requests: Sequence[Any]) -> Noises:
        """The noise of SGLang's requests; it is keyed by the position in the turn, SGLang counts in the context."""
        entries = [request.sampling_params.custom_params for request in requests]
        seeds = [noise_seed(each) for each in entries]
        shifted = [
            0 if seed is None else shifted_seed(seed, len(request.origin_input_ids) - given_of(each) - 1)
            for request, each, seed in zip(requests, entries, seeds, strict=True)
        ]
        return cls(
            np.array([is_ours(each) for each in entries], np.bool_),
            np.array(shifted, np.uint64),
            np.array([seed is None for seed in seeds], np.bool_),
            np.array([is_reverified(each) for each in entries], np.bool_),
        )

    def at(self, rows: Any) -> Noises:
        """The noise of some rows, int64."""
        return Noises(*(column[rows] for column in self))

    def then(self, other: Noises) -> Noises:
        """This noise and that of further rows."""
        return Noises(*(np.concatenate(columns) for columns in zip(self, other, strict=True)))

    def now(self) -> NDArray[np.uint64]:
        """The seed of each row, a fresh one where a request has none."""
        if not self.fresh.any():
            return self.seeds
        # By PyTorch's own generator, since SGLang seeds it alike on all ranks.
        made = torch.randint(-(1 << 63), (1 << 63) - 1, self.fresh.shape, dtype=torch.int64, device="cpu")
        return np.where(self.fresh, made.numpy().view(np.uint64), self.seeds)


def draw(probabilities: Tensor, noises: Noises, positions: NDArray[np.int64] | Tensor) -> Tensor:
    """Draw one token per row.

    Args:
        probabilities: Shape (rows, vocabulary).
        positions: Position in the context of the token before the drawn one, shape (rows,).

    Returns:
        int64, shape (rows,).
    """
    return race(probabilities.float(), noises.now(), positions)


def reshaped(probabilities: Tensor, sampling: Any, owner: Tensor | None = None) -> Tensor:
    """Probabilities after min-p, top-k and top-p.

    Args:
        probabilities: At the requests' temperatures, shape (rows, vocabulary).
        sampling: SGLang's ``SamplingBatchInfo``.
        owner: Index of the request of each row; ``None`` is one row a request.
    """
    if not _cuts(sampling):
        return probabilities
    top_k, top_p, min_p = (
        values if owner is None else values[owner] for values in (sampling.top_ks, sampling.top_ps, sampling.min_ps)
    )
    transforms = Transforms(
        temperature=torch.ones_like(top_p),
        top_k=top_k.long(),
        top_p=top_p,
        min_p=min_p,
        greedy=False,
        sorts=bool(sampling.need_top_k_sampling or sampling.need_top_p_sampling),
        floors=bool(sampling.need_min_p_sampling),
    )
    return transform(probabilities.log(), transforms).softmax(-1)


def draw_at_nodes(
    logits: Tensor,
    sampling: Any,
    noises: Noises,
    positions: Tensor,
    width: int,
    drafted: Sequence[int] | None = None,
) -> Tensor:
    """Draw a token at each node of the batch's trees.

    Args:
        logits: After penalties, shape (rows * width, vocabulary).
        sampling: SGLang's ``SamplingBatchInfo``.
        positions: Position in the context of each node, shape (rows * width,).
        drafted: Nodes of each tree after its root; the rest is padding, at which nothing is drawn. ``None``: all.

    Returns:
        int64, shape (rows, width), 0 at padding.
    """
    counts = np.full(len(noises.seeds), width - 1) if drafted is None else np.asarray(drafted)
    node = np.flatnonzero(np.arange(width) <= counts[:, None])
    owner = node // width
    places, owners = torch.from_numpy(np.stack([node, owner])).to(logits.device, non_blocking=True)
    tempered = logits if len(node) == len(logits) else logits[places]
    tempered = tempered / sampling.temperatures.view(-1)[owners, None]
    seeds, where = noises.now()[owner], positions[places]
    if _cuts(sampling):
        drawn = race(reshaped(tempered.softmax(-1), sampling, owners).float(), seeds, where)
    else:
        drawn = race_of_logits(tempered, seeds, where)
    tokens = torch.zeros(len(counts) * width, dtype=torch.int64, device=logits.device)
    tokens[places] = drawn
    return tokens.view(-1, width)


def _cuts(sampling: Any) -> bool:
    """Whether a request of SGLang's ``SamplingBatchInfo`` has min-p, top-k or top-p."""
    return bool(sampling.need_top_k_sampling or sampling.need_top_p_sampling or sampling.need_min_p_sampling)
