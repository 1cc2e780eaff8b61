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

from turntree.agents.engines.drafting.race import race
from turntree.agents.engines.drafting.transforms import Transforms, transform
from turntree.agents.engines.request_wire import given_of, is_judged, seed_of
from turntree.agents.engines.sglang.wire import is_ours, shifted_seed


class Noise(NamedTuple):
    """The source of one request's noise."""

    ours: bool
    """Whether the request is drawn here."""
    seed: int | None
    """Shifted (``wire.shifted_seed``), in [0, 2**64); ``None`` for fresh noise."""
    judged: bool = False
    """Whether tokens are drawn at the positions of its guess too (``judging``)."""

    @classmethod
    def of(cls, request: Any) -> Noise:
        """The noise of SGLang's request; noise is keyed by the position in the turn, SGLang counts in the context."""
        entries = request.sampling_params.custom_params
        seed = seed_of(entries)
        before = len(request.origin_input_ids) - given_of(entries) - 1
        return cls(is_ours(entries), None if seed is None else shifted_seed(seed, before), is_judged(entries))


def draw(laws: Tensor, noises: Sequence[Noise], positions: NDArray[np.int64]) -> Tensor:
    """Draw one token per row.

    Args:
        laws: Probabilities, shape (rows, vocabulary).
        noises: Noise of each row.
        positions: Position in the context of the token before the drawn one, shape (rows,).

    Returns:
        int64, shape (rows,).
    """
    seeded = [row for row, noise in enumerate(noises) if noise.seed is not None]
    seeds = np.array([noise.seed or 0 for noise in noises], np.uint64)
    if laws.device.type == "cpu":
        # A compiled loop is many times faster than a logarithm per token. PyTorch's own generator makes the fresh
        # seeds, since SGLang seeds it alike on all ranks.
        fresh = torch.randint(-(1 << 63), (1 << 63) - 1, (len(noises),), dtype=torch.int64).numpy().view(np.uint64)
        fresh[seeded] = seeds[seeded]
        return race(laws.float(), fresh, positions)
    winners = (laws / torch.empty_like(laws).exponential_()).argmax(-1)
    if seeded:
        winners[seeded] = race(laws[seeded].float(), seeds[seeded], positions[seeded])
    return winners


def reshaped(laws: Tensor, sampling: Any, *, repeat: int | Tensor = 1) -> Tensor:
    """Probabilities after min-p, top-k and top-p.

    Args:
        laws: At the requests' temperatures, shape (rows * repeat, vocabulary).
        sampling: SGLang's ``SamplingBatchInfo`` of the rows.
        repeat: Consecutive distributions of each row; a tensor of shape (rows,) where they have different numbers.
    """
    if not (sampling.need_top_k_sampling or sampling.need_top_p_sampling or sampling.need_min_p_sampling):
        return laws
    top_k, top_p, min_p = (
        torch.repeat_interleave(values, repeat) for values in (sampling.top_ks, sampling.top_ps, sampling.min_ps)
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
    return transform(laws.log(), transforms).softmax(-1)


def draw_at_nodes(logits: Tensor, sampling: Any, noises: Sequence[Noise], positions: Tensor, width: int) -> Tensor:
    """Draw a token at each node of the batch's trees.

    Args:
        logits: After penalties, shape (rows * width, vocabulary).
        sampling: SGLang's ``SamplingBatchInfo``.
        noises: Noise of each row.
        positions: Position in the context of each node, shape (rows * width,).
        width: Nodes of a tree.

    Returns:
        int64, shape (rows, width).
    """
    temperatures = torch.repeat_interleave(sampling.temperatures.view(-1), width)
    laws = reshaped((logits / temperatures[:, None]).softmax(-1), sampling, repeat=width)
    each = [noise for noise in noises for _ in range(width)]
    return draw(laws, each, positions.cpu().numpy().astype(np.int64)).view(-1, width)
