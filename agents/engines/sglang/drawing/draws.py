"""Sampling of turntree's requests inside SGLang: draw a token at every node, then match the draft tree.

A race of exponential clocks draws every token: the token with the smallest ``E / p`` wins, with E exponential noise and
p its probability after all transforms (min-p, top-k, top-p, in the order of ``agents.engines.local``). With a seed, the
noise depends only on seed, position and token. The sampled tokens then depend neither on drafts nor on the batch. A
draft that was sampled with the same seed and policy is accepted whole. Without a seed, the noise is fresh.

The draft tree is then walked from the root along the drawn tokens. This is exact for any tree, also with equal
siblings, and no rule that knows only the draft's tokens accepts more.

Without turntree's draft worker, batches without turntree's requests keep SGLang's own rules. SGLang's seeded sampler
hashes (seed, position, token) in plain decoding, but its verification of trees uses independent random numbers (in
0.5.12 without any seed). With SGLang's rules, seeded turns therefore depend on their drafts.

turntree computes the noise when SGLang builds a batch, and stores it as an attribute of ``SamplingBatchInfo``.
Functions here wrap the methods of that class with the same names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
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
    """Where the noise of each request comes from; each array has shape (rows,)."""

    ours: NDArray[np.bool_]  #: whether turntree draws for the request
    seeds: NDArray[np.uint64]  #: shifted by ``shifted_seed``; 0 for fresh noise
    fresh: NDArray[np.bool_]  #: whether the request has no seed
    reverified: NDArray[np.bool_]  #: whether tokens are drawn at the draft's positions too (``reverify``)

    @classmethod
    def of(cls, requests: Sequence[Any]) -> Noises:
        # Shift the seed: noise is keyed by the position in the turn, but SGLang counts positions in the context.
        params = [request.sampling_params.custom_params for request in requests]
        seeds = [noise_seed(entries) for entries in params]
        shifted = [
            0 if seed is None else shifted_seed(seed, len(request.origin_input_ids) - given_of(entries) - 1)
            for request, entries, seed in zip(requests, params, seeds, strict=True)
        ]
        return cls(
            np.array([is_ours(entries) for entries in params], np.bool_),
            np.array(shifted, np.uint64),
            np.array([seed is None for seed in seeds], np.bool_),
            np.array([is_reverified(entries) for entries in params], np.bool_),
        )

    def at(self, rows: Any) -> Noises:  # the noise of a selection of rows
        return Noises(*(column[rows] for column in self))

    def then(self, other: Noises) -> Noises:  # rows of `self`, then rows of `other`
        return Noises(*(np.concatenate(columns) for columns in zip(self, other, strict=True)))

    def now(self) -> NDArray[np.uint64]:
        """Return the seed of each row; draw a fresh seed for each request without a seed."""
        if not self.fresh.any():
            return self.seeds
        # Use PyTorch's global generator, which SGLang seeds alike on all ranks.
        fresh = torch.randint(-(1 << 63), (1 << 63) - 1, self.fresh.shape, dtype=torch.int64, device="cpu")
        return np.where(self.fresh, fresh.numpy().view(np.uint64), self.seeds)


def draw(probabilities: Tensor, noises: Noises, positions: NDArray[np.int64] | Tensor) -> Tensor:
    """Draw one token per row of ``probabilities`` (rows, vocabulary), int64, shape (rows,).

    ``positions`` are the context positions of the tokens before the drawn tokens, shape (rows,).
    """
    return race(probabilities.float(), noises.now(), positions)


def reshaped(probabilities: Tensor, sampling: Any, owner: Tensor | None = None) -> Tensor:
    """Apply min-p, top-k and top-p to ``probabilities``, shape (rows, vocabulary), and return the result.

    ``owner`` is the index of each row's request; ``None`` means one row per request.
    """
    if not _cuts(sampling):
        return probabilities
    top_k, top_p, min_p = (
        values if owner is None else values[owner] for values in (sampling.top_ks, sampling.top_ps, sampling.min_ps)
    )
    transforms = Transforms(
        temperature=torch.ones_like(top_p),  # already applied
        top_k=top_k.long(),
        top_p=top_p,
        min_p=min_p,
        greedy=False,
        sorts=bool(sampling.need_top_k_sampling or sampling.need_top_p_sampling),
        floors=bool(sampling.need_min_p_sampling),
    )
    return transform(probabilities.log(), transforms).softmax(-1)


def draw_at_nodes(
    logits: Tensor, sampling: Any, noises: Noises, positions: Tensor, width: int, drafted: Sequence[int] | None = None
) -> Tensor:
    """Draw a token at each node of the batch's trees: int64, shape (rows, width), 0 at padding.

    Args:
        logits: After penalties, shape (rows * width, vocabulary).
        positions: Context position of each node, shape (rows * width,).
        drafted: Number of drafted nodes of each tree, without root and padding; ``None`` if no tree has padding.
    """
    # Draw only at real nodes: padding would cost as much as drafts.
    counts = np.full(len(noises.seeds), width - 1) if drafted is None else np.asarray(drafted)
    node = np.flatnonzero(np.arange(width) <= counts[:, None])
    owner = node // width
    nodes, owners = torch.from_numpy(np.stack([node, owner])).to(logits.device, non_blocking=True)
    tempered = logits if len(node) == len(logits) else logits[nodes]
    tempered = tempered / sampling.temperatures.view(-1)[owners, None]
    seeds, token_positions = noises.now()[owner], positions[nodes]
    if _cuts(sampling):
        drawn = race(reshaped(tempered.softmax(-1), sampling, owners).float(), seeds, token_positions)
    else:
        drawn = race_of_logits(tempered, seeds, token_positions)
    tokens = torch.zeros(len(counts) * width, dtype=torch.int64, device=logits.device)
    tokens[nodes] = drawn
    return tokens.view(-1, width)


def _cuts(sampling: Any) -> bool:  # whether min-p, top-k or top-p change any row
    return bool(sampling.need_top_k_sampling or sampling.need_top_p_sampling or sampling.need_min_p_sampling)


_NOISES = "turntree_noises"
_NO_NOISES = Noises.of([])
_draws_for_all = False


def draw_for_all() -> None:
    """Make turntree sample all later requests of this process; turntree's draft worker calls this."""
    global _draws_for_all
    _draws_for_all = True


def noises_of(sampling: Any) -> Noises | None:
    """Return the noise of a ``SamplingBatchInfo``; ``None`` if SGLang samples the whole batch."""
    noises: Noises | None = getattr(sampling, _NOISES, None)
    if noises is None or not (_draws_for_all or noises.ours.any()):
        return None
    if len(noises.seeds) != len(sampling):
        raise RuntimeError(
            f"a batch of {len(sampling)} requests has noise for {len(noises.seeds)}; this version of SGLang changes "
            "batches by a method that turntree does not wrap. Use SGLang 0.5.12"
        )
    return noises


def from_schedule_batch(original: Callable[..., Any], cls: type, batch: Any, *rest: Any, **options: Any) -> Any:
    info = original(cls, batch, *rest, **options)
    setattr(info, _NOISES, Noises.of(batch.reqs))
    return info


def filter_batch(original: Callable[..., None], info: Any, keep: Sequence[int], *rest: Any, **options: Any) -> None:
    original(info, keep, *rest, **options)
    if hasattr(info, _NOISES):
        setattr(info, _NOISES, getattr(info, _NOISES).at(np.asarray(keep, np.int64)))


def merge_batch(original: Callable[..., None], info: Any, other: Any) -> None:
    original(info, other)
    setattr(info, _NOISES, getattr(info, _NOISES, _NO_NOISES).then(getattr(other, _NOISES, _NO_NOISES)))


def copy_for_forward(original: Callable[..., Any], info: Any, *rest: Any, **options: Any) -> Any:
    # The forward pass samples from this copy while the scheduler changes the original.
    copied = original(info, *rest, **options)
    if hasattr(info, _NOISES):
        setattr(copied, _NOISES, getattr(info, _NOISES))
    return copied


#: Attribute of SGLang's ``NgramVerifyInput``: number of drafted nodes of each row, without root and padding.
DRAFTED_NODES = "turntree_drafted"


def alike_on_ranks(drawn: Tensor) -> Tensor:
    # The ranks' logits may differ in rounding, so all ranks take the first rank's tokens.
    group = importlib.import_module("sglang.srt.distributed").get_tp_group()
    if group.world_size > 1:
        group.broadcast(drawn, src=0)
    return drawn


def sampling_verify(
    original: Callable[..., None], verify_input: Any, batch: Any, logits_output: Any, sampling: Any
) -> None:
    """Verify like ``NgramVerifyInput._greedy_verify``, but with drawn tokens instead of the most probable tokens."""
    noises = noises_of(sampling)
    if noises is None:
        return original(verify_input, batch, logits_output, sampling)
    logits = logits_output.next_token_logits
    rows, width = batch.batch_size(), verify_input.draft_token_num
    verify_input.predict = torch.empty(len(logits) + 1, dtype=torch.int32, device=logits.device)
    verify_input.accept_indices = torch.full((rows, width), -1, dtype=torch.int32, device=logits.device)
    verify_input.num_correct_drafts = torch.empty((rows,), dtype=torch.int32, device=logits.device)
    drafted = getattr(verify_input, DRAFTED_NODES, None)
    drawn = alike_on_ranks(draw_at_nodes(logits, sampling, noises, verify_input.positions, width, drafted))
    # "retrive" is SGLang's spelling. The kernel walks each tree along `target_predict`.
    importlib.import_module("sglang.srt.speculative.ngram_info").verify_tree_greedy(
        predicts=verify_input.predict,
        accept_index=verify_input.accept_indices,
        accept_token_num=verify_input.num_correct_drafts,
        candidates=verify_input.draft_token.reshape(rows, width),
        retrive_index=verify_input.retrieve_index,
        retrive_next_token=verify_input.retrieve_next_token,
        retrive_next_sibling=verify_input.retrieve_next_sibling,
        target_predict=drawn,
    )
    return None
