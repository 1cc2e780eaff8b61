"""Conversion of ``Sampling`` to SGLang's parameters, as plain data for the engine in process and the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from turntree.agents.engines.protocol import Sampling, TurnRequest
from turntree.agents.engines.sglang.wire import custom_params

_RECORDED = 64
"""Most probable tokens requested to compute the distribution after top-p or min-p from."""


class UnsupportedSampling(ValueError):
    """SGLang cannot sample with the requested parameters."""


def turn_arguments(
    request: TurnRequest,
    *,
    room: int | None = None,
    speculates: bool = True,
    vocabulary: int | None = None,
    given: int = 0,
) -> dict[str, Any]:
    """Arguments of one turn.

    Args:
        request: The turn.
        room: Tokens left in the context; ``None`` is no bound.
        speculates: Whether the engine may verify drafts.
        vocabulary: Size of the model's vocabulary; ``None`` if unknown.
        given: Tokens at the end of the prompt that are the first ones of the turn.

    Raises:
        UnsupportedSampling: If SGLang would silently draw from another distribution.
    """
    sampling = request.sampling
    penalties = (sampling.repetition_penalty != 1, sampling.presence_penalty != 0, sampling.frequency_penalty != 0)
    if speculates and any(penalties):
        raise UnsupportedSampling(
            "SGLang applies the same penalties to all nodes of a draft tree, got repetition_penalty="
            f"{sampling.repetition_penalty}, presence_penalty={sampling.presence_penalty}, frequency_penalty="
            f"{sampling.frequency_penalty}; use 1, 0 and 0, or an engine without speculation (draft_tokens=0)"
        )
    parameters = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "max_new_tokens": sampling.max_tokens if room is None else min(sampling.max_tokens, room),
        "stop_token_ids": list(sampling.stop_token_ids),
        "custom_params": custom_params(state=request.state, seed=sampling.seed, draft=request.draft, given=given),
    }
    return {
        "input_ids": list(request.prompt_ids),
        "sampling_params": parameters,
        "return_logprob": True,
        "top_logprobs_num": recorded(sampling, vocabulary),
    }


def judging_arguments(request: TurnRequest, *, speculates: bool = True) -> dict[str, Any]:
    """Arguments of one pass that draws a token at each position of the request's draft (``drawing.judging``).

    Args:
        request: The turn, with room for its draft and one token more.
        speculates: As of ``turn_arguments``.
    """
    prompt, guess, sampling = list(request.prompt_ids), list(request.draft), request.sampling
    given = replace(request, prompt_ids=[*prompt, *guess], draft=(), sampling=replace(sampling, max_tokens=1))
    arguments = turn_arguments(given, speculates=speculates)
    arguments["sampling_params"]["custom_params"] = custom_params(
        state=request.state, seed=sampling.seed, given=len(guess), judged=True, most=sampling.max_tokens
    )
    return arguments | {"logprob_start_len": len(prompt) - 1, "top_logprobs_num": 2}


def recorded(sampling: Sampling, vocabulary: int | None) -> int:
    """Number of most probable tokens requested, before top-k, top-p and min-p."""
    if not sampling.top_logprobs or not cuts(sampling):
        return sampling.top_logprobs
    most = max(sampling.top_logprobs, sampling.top_k + 1, _RECORDED)
    return most if vocabulary is None else min(most, vocabulary)


def cuts(sampling: Sampling) -> bool:
    """Whether the distribution differs from the model's at its temperature."""
    return sampling.top_p < 1 or sampling.top_k != -1 or sampling.min_p > 0


def scoring_request(prompt: Sequence[int], tokens: Sequence[int], top: int) -> dict[str, Any]:
    """Arguments that score ``tokens`` after ``prompt``: log-probabilities at temperature 1 of each of them, and of
    the ``top`` most probable ones there and after the last."""
    return {
        "input_ids": [*prompt, *tokens],
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 1, "ignore_eos": True},
        "return_logprob": True,
        "logprob_start_len": len(prompt) - 1,
        "top_logprobs_num": top,
    }
