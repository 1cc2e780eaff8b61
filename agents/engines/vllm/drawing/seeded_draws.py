"""Seeded sampling inside vLLM, with noise that depends only on seed, position and token.

vLLM's own seeds feed a generator whose numbers depend on how many numbers it drew before, so a draft would change the
tokens after it. Here a race of exponential clocks draws each token: the token with the smallest ``E / p`` wins, with p
its probability and E exponential noise (``spec_tree.rules.noise``). A drafted token is accepted exactly if it wins. A
turn is therefore the same with any drafts and in any batch. If the draft is a turn that was sampled with the same seed
and policy, all of it is accepted. The host does not wait for the device while a step is drawn and compared.

Most steps on a GPU are sampled by ``fused_sampling``. This module handles all other steps, by three patches of vLLM's
sampling: the object ``topk_topp_sampler`` of the runner's sampler, the method ``forward`` of the rejection sampler, and
the function ``rejection_sample`` that ``forward`` calls. Greedy requests and requests without a turntree seed are
unchanged. Log-probabilities are vLLM's. Checked with ``compat.CHECKED``; tests: ``test_seeded_draws.py``.
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
    """Make a model runner draw seeded requests by the race of exponential clocks."""
    sampler: Any = getattr(runner, "sampler", None)
    inner = getattr(sampler, "topk_topp_sampler", None)
    if inner is None:
        logger.warning(
            "requests with a turntree seed will draw fresh noise: turntree needs a model runner with "
            "sampler.topk_topp_sampler, as in vLLM %s, but got %s with %s",
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
    return isinstance(getattr(getattr(runner, "sampler", None), "topk_topp_sampler", None), _Draws)


class _Draws(nn.Module):  # replaces vLLM's `topk_topp_sampler`, kept as `inner`
    #: The instance whose rejection sampler is running; a worker process samples on one thread.
    active: _Draws | None = None

    def __init__(self, inner: nn.Module, runner: Any, rows: CurrentRows) -> None:
        super().__init__()
        self._inner = inner
        self._runner = runner
        self._rows = rows

    def forward(
        self, logits: Tensor, generators: dict[int, torch.Generator], k: Tensor | None, p: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        rows = self._rows.now()
        # In vLLM's dry run, the logits do not have one row per request: leave the sampling to vLLM.
        if not len(rows.seeded) or len(logits) != rows.held.shape[1]:
            result: tuple[Tensor, Tensor | None] = self._inner(logits, generators, k, p)
            return result
        index = rows.index
        scaled = constrained(logits[index], *(None if x is None else x[index] for x in (k, p)))
        winners = draw(scaled, rows.held[0, index], rows.ends(self._runner))  # row 0 of `held`: seeds
        drawn, logprobs = self._inner(logits, generators, k, p)
        drawn[index] = winners.to(drawn.dtype)
        return drawn, logprobs

    def during(self, forward: Any) -> Any:  # wraps `forward`, so that `active` is this instance while it runs
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
            drafts: Draft tokens of all rows, concatenated, shape (nodes,). A node is one draft position.
            lengths: Number of draft tokens of each row.
            logits: Logits at the nodes after all transforms, shape (nodes, vocabulary).
            bonus: The token after each whole draft, shape (rows, 1).
        """
        rows = self._rows.now()
        if not len(rows.seeded):
            return
        # Compute on the host which of the concatenated nodes belong to seeded rows.
        node_counts = np.array(lengths, np.int64)
        counts = node_counts[rows.seeded]
        # `row_of_node` is the index of a node's row among the seeded rows, `step` the node's position in its draft.
        row_of_node = np.repeat(np.arange(len(counts)), counts)
        step = np.arange(len(row_of_node)) - (np.cumsum(counts) - counts)[row_of_node]
        nodes = (np.cumsum(node_counts) - node_counts)[rows.seeded][row_of_node] + step
        index, (ends, row, column, node) = rows.index, _on(tokens.device, counts, row_of_node, step, nodes)
        sampled = tokens.new_full((len(counts), tokens.shape[1]), placeholder)
        drafted = sampled.clone()
        if len(nodes):
            scaled = logits if len(nodes) == len(logits) else logits[node]
            # `rows.ends`: turn position of the bonus token. `ends`: number of draft tokens before it.
            positions = (rows.ends(self._runner) - ends)[row] + column
            sampled[row, column] = draw(scaled, rows.held[0, index][row], positions).to(sampled.dtype)
            drafted[row, column] = drafts[node].to(sampled.dtype)
        sampled.scatter_(1, ends[:, None], bonus[index].to(sampled.dtype))
        # The bonus token is compared with a placeholder and never equals it, so the match ends there at the latest.
        matched = (sampled == drafted).cumprod(1).sum(1, keepdim=True)
        tokens[index] = sampled.masked_fill(
            torch.arange(sampled.shape[1], device=sampled.device) > matched, placeholder
        )


def draw(logits: Tensor, seeds: Seeds, positions: NDArray[np.int64] | Tensor) -> Tensor:
    """Return the tokens that win the race at ``positions`` in the turn, int64, shape (rows,).

    ``logits`` have all transforms applied, shape (rows, vocabulary).
    """
    from turntree.agents.engines.drafting.race import race_of_logits

    return race_of_logits(logits, seeds, positions)


def _on(device: torch.device, *indices: Sequence[int] | NDArray[np.int64]) -> tuple[Tensor, ...]:
    # Copy all index arrays at once, without waiting for the device.
    whole = torch.from_numpy(np.concatenate([np.asarray(array, np.int64) for array in indices]))
    parts: tuple[Tensor, ...] = whole.to(device, non_blocking=True).split([len(array) for array in indices])
    return parts


def constrained(logits: Tensor, k: Tensor | None, p: Tensor | None) -> Tensor:
    # Apply top-k and top-p by vLLM's function, so that ties at the cut are broken alike. It may write into `logits`.
    if k is None and p is None:
        return logits
    module: Any = importlib.import_module("vllm.v1.sample.ops.topk_topp_sampler")
    constrained: Tensor = module.apply_top_k_top_p(logits, k, p)
    return constrained


def _patch_rejection() -> None:
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
