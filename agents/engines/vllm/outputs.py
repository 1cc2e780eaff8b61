"""Conversion of vLLM's outputs to completions.

vLLM is run with ``logprobs_mode=processed_logprobs``: log-probabilities of
sampled tokens are those after all transforms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, Sampling, TopLogprobs
from turntree.agents.engines.token_logprobs import TokenLogprobs

_FINISHED = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


def completion(
    token_ids: Sequence[int],
    readings: TokenLogprobs,
    finish_reason: str | None,
    sampling: Sampling,
    *,
    draft: DraftStats,
    cached_tokens: int,
    weights_version: int,
) -> Completion:
    """A sampled turn.

    Args:
        token_ids: Sampled tokens, shape (tokens,).
        readings: Log-probabilities at each of them.
        finish_reason: vLLM's finish reason.
        sampling: Sampling parameters of the request.
        draft: Speculation counters.
        cached_tokens: Prompt tokens whose keys and values were reused.
        weights_version: Version of the policy's weights.
    """
    greedy = sampling.temperature == 0
    logprobs = tuple(readings.chosen.tolist())
    top = None
    if sampling.top_logprobs:
        best = readings.logprobs.astype(np.float32)
        if greedy:  # the distribution has one token; vLLM gives the model's
            best = np.where(np.arange(best.shape[1]) == 0, np.float32(0.0), np.float32(-np.inf))[None].repeat(
                len(best), 0
            )
        top = TopLogprobs(ids=readings.ids, logprobs=best)
    return Completion(
        token_ids=tuple(token_ids),
        logprobs=logprobs,
        behaviour_logprobs=(0.0,) * len(logprobs) if greedy else logprobs,
        finish_reason=_FINISHED.get(finish_reason or "abort", FinishReason.ABORT),
        draft=draft,
        cached_tokens=cached_tokens,
        weights_version=weights_version,
        top=top,
    )


def aborted(weights_version: int) -> Completion:
    """The turn of a request that was aborted before it sampled."""
    return Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT, weights_version=weights_version)
