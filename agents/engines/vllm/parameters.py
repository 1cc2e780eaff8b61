"""Conversion of ``Sampling`` to vLLM's parameters, as plain data for the engine in process and the server."""

from __future__ import annotations

from typing import Any

from turntree.agents.engines.protocol import Sampling

_COLDEST = 0.01
"""vLLM raises lower temperatures to this one."""


class UnsupportedSampling(ValueError):
    """vLLM cannot sample with the requested parameters."""


def parameters(sampling: Sampling, *, speculates: bool) -> dict[str, Any]:
    """Fields of vLLM's ``SamplingParams`` except ``seed``: turntree's seed is sent as ``wire.SEED``.

    A turn ends only at ``stop_token_ids``, whatever the model's own end tokens are.

    Args:
        sampling: Sampling parameters.
        speculates: Whether the engine verifies drafts.

    Raises:
        UnsupportedSampling: If vLLM would silently draw from another distribution, or refuse later.
    """
    if 0 < sampling.temperature < _COLDEST:
        raise UnsupportedSampling(
            f"vLLM raises temperatures below {_COLDEST} to it, got {sampling.temperature}; use 0 for greedy"
        )
    if speculates and sampling.min_p > 0:
        raise UnsupportedSampling(
            f"vLLM does not apply min_p where it verifies drafts, got min_p={sampling.min_p}; set it to 0, use top_p "
            "or top_k, or switch speculation off"
        )
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": max(sampling.top_k, 0),
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": True,
        "logprobs": sampling.top_logprobs,
    }


def scoring_parameters(top: int) -> dict[str, Any]:
    """Fields that score a prompt: log-probabilities at temperature 1 of each of its tokens and of the ``top`` most
    probable ones, -1 for all tokens, and of the token after it."""
    return {
        "temperature": 1.0,
        "max_tokens": 1,
        "ignore_eos": True,
        "prompt_logprobs": top,
        "logprobs": top,
    }
