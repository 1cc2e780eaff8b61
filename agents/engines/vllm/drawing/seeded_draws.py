"""Seeded sampling inside vLLM, by noise that depends on seed, position and token as everywhere in turntree.

vLLM's own seeds feed a generator whose numbers depend on how many were drawn
before, so that a draft changes the tokens after it. Here a token is the winner
of a race of exponential clocks (``spec_tree.rules.noise``), and a drafted token is
accepted exactly if it is that winner: the turn is the same with and without
drafts, alone and in a batch. A turn that was sampled with the same seed is
replayed by drafting it. All rows of a step are drawn and compared together, on
their device, and nothing waits for the device.

Most steps on a GPU are sampled by ``fused_sampling``. Here are the others, within
vLLM's own sampling: three places of it are changed, checked with the versions in
``compat.CHECKED``: the ``topk_topp_sampler`` of the runner's sampler and the ``forward`` of
its rejection sampler, both on the object; and the function ``rejection_sample``, which
that forward calls. Requests without turntree's seed, and greedy ones, are left as
they are. Log-probabilities are vLLM's.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from turntree.agents.engines.vllm.compat import CHECKED
from turntree.agents.engines.vllm.drawing import fused_sampling
from turntree.agents.engines.vllm.drawing.batch_rows import CurrentRows

if TYPE_CHECKING:
    from turntree.agents.engines.drafting.race import Seeds

logger = logging.getLogger(__name__)

_MARK = "turntree_seeded_draws"


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
            ", ".join(CHECKED),
            type(runner).__name__,
            type(sampler).__name__,
        )
        return
    if installed(runner):
        return
    rows = CurrentRows(runner)
    draws = _Draws(inner, runner, rows)
    sampler.topk_topp_sampler = draws
    fused_sampling.install(runner, rows)
    rejection = getattr(runner, "rejection_sampler", None)
    if rejection is not None:
        rejection.forward = draws.during(rejection.forward)
        _patch_rejection()


def installed(runner: Any) -> bool:
    """Whether the seeded requests of a model runner draw by the race."""
    return isinstance(getattr(getattr(runner, "sampler", None), "topk_topp_sampler", None), _Draws)


class _Draws(nn.Module):
    """Replacement of vLLM's ``TopKTopPSampler``."""

    active: _Draws | None = None
    """The instance whose rejection sampler runs now; a worker process has one thread that samples."""

    def __init__(self, inner: nn.Module, runner: Any, rows: CurrentRows) -> None:
        super().__init__()
        self._inner = inner
        self._runner = runner
        self._rows = rows

    def forward(
        self, logits: Tensor, generators: dict[int, torch.Generator], k: Tensor | None, p: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Draw one token per row, at the end of its drafts if there are any. A dry run's rows are of no request."""
        rows = self._rows.now()
        if not len(rows.seeded) or len(logits) != rows.held.shape[1]:
            untouched: tuple[Tensor, Tensor | None] = self._inner(logits, generators, k, p)
            return untouched
        index = rows.index
        scaled = constrained(logits[index], *(None if x is None else x[index] for x in (k, p)))
        winners = draw(scaled, rows.held[0, index], rows.ends(self._runner))
        drawn, logprobs = self._inner(logits, generators, k, p)
        drawn[index] = winners.to(drawn.dtype)
        return drawn, logprobs

    def during(self, forward: Any) -> Any:
        """``forward`` of a rejection sampler, during which this one is active."""

        @functools.wraps(forward)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            _Draws.active = self
            try:
                return forward(*args, **kwargs)
            finally:
                _Draws.active = None

        return wrapped

    def match(
        self, tokens: Tensor, drafts: Tensor, lengths: Sequence[int], logits: Tensor, bonus: Tensor, placeholder: int
    ) -> None:
        """Overwrite ``tokens`` in the seeded rows with the tokens of the race.

        Args:
            tokens: vLLM's output, shape (rows, longest draft + 1), ``placeholder`` after the last token.
            drafts: Draft tokens of all rows, shape (nodes,).
            logits: Logits of the distributions at the nodes, after all transforms, shape (nodes, vocabulary).
            bonus: The token at the end of each whole draft, shape (rows, 1).
        """
        rows = self._rows.now()
        if not len(rows.seeded):
            return
        every = np.array(lengths, np.int64)
        counts = every[rows.seeded]
        own = np.repeat(np.arange(len(counts)), counts)  # of each of their nodes, the row among the seeded ones
        step = np.arange(len(own)) - (np.cumsum(counts) - counts)[own]
        nodes = (np.cumsum(every) - every)[rows.seeded][own] + step
        index, (ends, row, column, node) = rows.index, _on(tokens.device, counts, own, step, nodes)
        mine = tokens.new_full((len(counts), tokens.shape[1]), placeholder)
        turn_drafted = mine.clone()
        if len(nodes):
            scaled = logits if len(nodes) == len(logits) else logits[node]
            places = (rows.ends(self._runner) - ends)[row] + column
            mine[row, column] = draw(scaled, rows.held[0, index][row], places).to(mine.dtype)
            turn_drafted[row, column] = drafts[node].to(mine.dtype)
        mine.scatter_(1, ends[:, None], bonus[index].to(mine.dtype))
        # The bonus token meets the placeholder, so that no token after it counts.
        met = (mine == turn_drafted).cumprod(1).sum(1, keepdim=True)
        tokens[index] = mine.masked_fill(torch.arange(mine.shape[1], device=mine.device) > met, placeholder)


def draw(logits: Tensor, seeds: Seeds, positions: NDArray[np.int64] | Tensor) -> Tensor:
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
