"""Seeded sampling inside vLLM, by noise that depends on seed, position and token as everywhere in turntree.

vLLM's own seeds feed a generator whose numbers depend on how many were drawn
before, so that a draft changes the tokens after it. Here a token is the winner
of a race of exponential clocks (``spec_tree.rules.noise``), and a drafted token is
accepted exactly if it is that winner: the turn is the same with and without
drafts, alone and in a batch. A turn that was sampled with the same seed is
replayed by drafting it. All rows of a step are drawn and compared together, on
their device, and nothing waits for the device.

Three places of vLLM are changed, checked with the versions in ``VERSIONS``: the
``topk_topp_sampler`` of the runner's sampler and the ``forward`` of its rejection
sampler, both on the object; and the function ``rejection_sample``, which that
forward calls. Requests without turntree's seed, and greedy ones, are left as
they are. Log-probabilities are vLLM's.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from turntree.agents.engines.request_wire import given_of, seed_of

logger = logging.getLogger(__name__)

VERSIONS = ("0.24", "0.28", "0.32")
"""Versions of vLLM in which the changed places were checked."""

_MARK = "turntree_seeded_draws"
_GREEDY = 1e-5
"""Temperature below which vLLM takes the most probable token."""


class SeededRows(NamedTuple):
    """The rows of a batch that have a seed."""

    rows: list[int]
    """Index in the batch, shape (rows,)."""
    seeds: NDArray[np.uint64]
    """Seed, shape (rows,)."""
    positions: NDArray[np.int64]
    """Tokens of its turn that each has, given ones included, shape (rows,)."""

    @classmethod
    def of(cls, runner: Any, count: int) -> SeededRows:
        """The seeded ones of the first ``count`` requests of the runner's batch; none in a dry run without requests."""
        rows, seeds, positions = [], [], []
        for row, request_id in enumerate(runner.input_batch.req_ids[:count]):
            request = runner.requests[request_id]
            parameters = request.sampling_params
            if parameters is None or parameters.temperature < _GREEDY:
                continue
            seed = seed_of(parameters.extra_args)
            if seed is not None:
                rows.append(row)
                seeds.append(seed)
                positions.append(given_of(parameters.extra_args) + len(request.output_token_ids))
        return cls(rows, np.array(seeds, np.uint64), np.array(positions, np.int64))


def install(runner: Any) -> None:
    """Let the seeded requests of a model runner draw by the race. Calling it again changes nothing.

    Args:
        runner: A ``GPUModelRunner`` of vLLM's V1 engine, or the CPU's.

    """
    sampler: Any = getattr(runner, "sampler", None)
    inner = getattr(sampler, "topk_topp_sampler", None)
    if inner is None:
        logger.warning(
            "requests with a seed of turntree's will draw fresh noise: that needs a model runner with "
            "sampler.topk_topp_sampler, as vLLM %s have, and this is %s with %s",
            ", ".join(VERSIONS),
            type(runner).__name__,
            type(sampler).__name__,
        )
        return
    if installed(runner):
        return
    draws = _Draws(inner, runner)
    sampler.topk_topp_sampler = draws
    rejection = getattr(runner, "rejection_sampler", None)
    if rejection is not None:
        rejection.forward = draws.during(rejection.forward)
        _patch_rejection()


def installed(runner: Any) -> bool:
    """Whether the seeded requests of a model runner draw by the race."""
    return isinstance(getattr(getattr(runner, "sampler", None), "topk_topp_sampler", None), _Draws)


class _Draws(nn.Module):
    """Replacement of vLLM's ``TopKTopPSampler``.

    Args:
        inner: The sampler that it replaces.
        runner: Its model runner.
    """

    active: _Draws | None = None
    """The instance whose rejection sampler runs now; a worker process has one thread that samples."""

    def __init__(self, inner: nn.Module, runner: Any) -> None:
        super().__init__()
        self._inner = inner
        self._runner = runner
        self._drafted: Sequence[int] | None = None

    def forward(
        self, logits: Tensor, generators: dict[int, torch.Generator], k: Tensor | None, p: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Draw one token per row, at the end of its drafts if there are any."""
        seeded = SeededRows.of(self._runner, len(logits))
        if not seeded.rows:
            untouched: tuple[Tensor, Tensor | None] = self._inner(logits, generators, k, p)
            return untouched
        (rows,) = _on(logits.device, seeded.rows)
        law = constrained(logits[rows], *(None if x is None else x[rows] for x in (k, p)))
        positions = seeded.positions
        if self._drafted is not None:
            positions = positions + np.array(self._drafted, np.int64)[seeded.rows]
        winners = draw(law, seeded.seeds, positions)
        drawn, logprobs = self._inner(logits, generators, k, p)
        drawn[rows] = winners.to(drawn.dtype)
        return drawn, logprobs

    def during(self, forward: Any) -> Any:
        """``forward`` of a rejection sampler, with the drafts' lengths known during the call."""

        @functools.wraps(forward)
        def wrapped(metadata: Any, *args: Any, **kwargs: Any) -> Any:
            self._drafted, _Draws.active = metadata.num_draft_tokens, self
            try:
                return forward(metadata, *args, **kwargs)
            finally:
                self._drafted, _Draws.active = None, None

        return wrapped

    def match(
        self, tokens: Tensor, drafts: Tensor, lengths: Sequence[int], logits: Tensor, bonus: Tensor, placeholder: int
    ) -> None:
        """Overwrite ``tokens`` in the seeded rows with the tokens of the race.

        Args:
            tokens: vLLM's output, shape (rows, longest draft + 1), ``placeholder`` after the last token.
            drafts: Draft tokens of all rows, shape (nodes,).
            lengths: Draft tokens of each row.
            logits: Logits of the distributions at the nodes, after all transforms, shape (nodes, vocabulary).
            bonus: The token at the end of each whole draft, shape (rows, 1).
            placeholder: The value for no token.
        """
        seeded = SeededRows.of(self._runner, len(lengths))
        if not seeded.rows:
            return
        every = np.array(lengths, np.int64)
        counts = every[seeded.rows]
        own = np.repeat(np.arange(len(counts)), counts)  # of each of their nodes, the row among the seeded ones
        step = np.arange(len(own)) - (np.cumsum(counts) - counts)[own]
        nodes = (np.cumsum(every) - every)[seeded.rows][own] + step
        rows, ends, row, column, node = _on(tokens.device, seeded.rows, counts, own, step, nodes)
        mine = tokens.new_full((len(counts), tokens.shape[1]), placeholder)
        guessed = mine.clone()
        if len(nodes):
            laws = logits if len(nodes) == len(logits) else logits[node]
            mine[row, column] = draw(laws, seeded.seeds[own], seeded.positions[own] + step).to(mine.dtype)
            guessed[row, column] = drafts[node].to(mine.dtype)
        mine.scatter_(1, ends[:, None], bonus[rows].to(mine.dtype))
        # The bonus token meets the placeholder, so that no token after it counts.
        met = (mine == guessed).cumprod(1).sum(1, keepdim=True)
        tokens[rows] = mine.masked_fill(torch.arange(mine.shape[1], device=mine.device) > met, placeholder)


def draw(logits: Tensor, seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> Tensor:
    """The winners of the race, int64, shape (rows,).

    Args:
        logits: Of the distributions, after all transforms, shape (rows, vocabulary).
        seeds: Shape (rows,).
        positions: Position in the turn, shape (rows,).
    """
    from turntree.agents.engines.drafting.race import race_of_logits

    return race_of_logits(logits, seeds, positions)


def _on(device: torch.device, *indices: Sequence[int] | NDArray[np.int64]) -> tuple[Tensor, ...]:
    """Indices on a device, by one copy that does not wait for its work."""
    whole = torch.from_numpy(np.concatenate([np.asarray(one, np.int64) for one in indices]))
    parts: tuple[Tensor, ...] = whole.to(device, non_blocking=True).split([len(one) for one in indices])
    return parts


def constrained(logits: Tensor, k: Tensor | None, p: Tensor | None) -> Tensor:
    """Logits after top-k and top-p by vLLM's own function, which may write into ``logits``; ``None`` is no limit."""
    if k is None and p is None:
        return logits
    module: Any = importlib.import_module("vllm.v1.sample.ops.topk_topp_sampler")
    constrained: Tensor = module.apply_top_k_top_p(logits, k, p)
    return constrained


def _patch_rejection() -> None:
    """Patch ``rejection_sample`` so that the active ``_Draws`` corrects its result."""
    module: Any = importlib.import_module("vllm.v1.sample.rejection_sampler")
    original = module.rejection_sample
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def rejection_sample(
        draft_token_ids: Tensor,
        num_draft_tokens: list[int],
        max_spec_len: int,
        cu_num_draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_logits: Tensor,
        bonus_token_ids: Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        tokens: Tensor = original(
            draft_token_ids,
            num_draft_tokens,
            max_spec_len,
            cu_num_draft_tokens,
            draft_probs,
            target_logits,
            bonus_token_ids,
            *args,
            **kwargs,
        )
        if _Draws.active is not None:
            _Draws.active.match(
                tokens, draft_token_ids, num_draft_tokens, target_logits, bonus_token_ids, module.PLACEHOLDER_TOKEN_ID
            )
        return tokens

    setattr(rejection_sample, _MARK, True)
    module.rejection_sample = rejection_sample
