"""Conversion of turns to vLLM's requests, and of vLLM's outputs to completions.

vLLM must run with ``logprobs_mode=processed_logprobs``, which reports log-probabilities after all transforms, and
with ``max_logprobs=-1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TopLogprobs, TurnRequest
from turntree.agents.engines.request_wire import turn_entries
from turntree.agents.engines.served.dialect import UnsupportedSampling, sampling_fields
from turntree.agents.engines.token_logprobs import TokenLogprobs

_MIN_TEMPERATURE = 0.01  #: vLLM raises lower temperatures to this value
_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRequest:
    prompt: list[int]  #: token ids, shape (prompt,)
    fields: dict[str, Any]  #: fields of vLLM's ``SamplingParams``
    priority: int = 0  #: vLLM schedules higher numbers later
    known: int | None = (
        None  #: how many first prompt tokens may be cached (``again``); ``None``: never repeat the request
    )


class VllmDialect:
    """The ``Dialect`` of vLLM."""

    priority_setting: ClassVar[str] = "scheduling_policy=priority"
    spare: ClassVar[int] = 0  #: vLLM's sampled token is the last token of a re-verified draft
    precomputed: ClassVar[int] = 1  #: priority of precomputed turns (generated before their caller asks)

    def __init__(self, *, speculates: bool) -> None:
        self.speculates = speculates

    def reverifies(self, sampling: Sampling) -> bool:
        return not sampling.min_p

    def turn(self, request: TurnRequest, given: int) -> Any:
        fields = parameters(request.sampling, speculates=self.speculates)
        fields["extra_args"] = turn_entries(request, given=given)
        return VllmRequest(prompt=list(request.prompt_ids), fields=fields, priority=self._priority(request))

    def reverify(self, request: TurnRequest) -> Any:
        *given, _ = request.draft  # vLLM samples the last token
        fields = parameters(replace(request.sampling, max_tokens=1), speculates=self.speculates)
        fields["extra_args"] = turn_entries(request, given=len(given), reverified=True)
        known = len(request.prompt_ids)
        # prompt_logprobs=0 makes vLLM call the patched method of `reverified_prompts`.
        asked = _scoring_request([*request.prompt_ids, *given], fields | {"prompt_logprobs": 0}, known)
        return replace(asked, priority=self._priority(request))

    def scoring(self, whole: Sequence[int], known: int, top: int) -> Any:
        return _scoring_request(list(whole), scoring_parameters(top), known)

    def again(self, asked: VllmRequest, answer: Any) -> VllmRequest | None:
        # Repeat without the cache if too many tokens were cached: vLLM computes no log-probabilities at cached
        # positions, and reports the number of cached tokens only afterwards.
        if asked.known is None or answer is None or asked.fields["skip_reading_prefix_cache"]:
            return None
        if (answer.num_cached_tokens or 0) < asked.known:
            return None
        return replace(asked, fields={**asked.fields, "skip_reading_prefix_cache": True})

    def completion(self, answer: Any, sampling: Sampling) -> Completion:
        if answer is None or not answer.outputs:
            return Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT)
        sampled = answer.outputs[0]
        logprobs = TokenLogprobs.from_flat(sampled.logprobs, sampling.top_logprobs)
        turn = completion(sampled.token_ids, logprobs, sampled.finish_reason, sampling)
        return replace(turn, cached_tokens=answer.num_cached_tokens or 0)

    def drawn(self, answer: Any, request: TurnRequest) -> Completion:
        if not _was_scored(answer):
            return Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT)
        given, reverified, sampled = len(request.draft) - 1, answer.prompt_logprobs, answer.outputs[0]
        logprobs = (*reverified.logprobs[-given:], sampled.logprobs.logprobs[0])
        return Completion(
            token_ids=(*reverified.token_ids[-given:], *sampled.token_ids),
            logprobs=logprobs,
            behaviour_logprobs=logprobs,
            finish_reason=FinishReason.LENGTH,
            cached_tokens=min(answer.num_cached_tokens or 0, len(request.prompt_ids)),
        )

    def scored(self, answer: Any, tokens: Sequence[int], top: int) -> tuple[TokenLogprobs, int] | None:
        if not _was_scored(answer):
            return None
        flat = answer.prompt_logprobs
        given = TokenLogprobs.from_flat(flat, top, slice(len(flat.start_indices) - len(tokens), None))
        after = TokenLogprobs.from_flat(answer.outputs[0].logprobs, top)
        return given.then(after), answer.num_cached_tokens or 0

    def _priority(self, request: TurnRequest) -> int:
        return self.precomputed if request.precomputed_for else 0


def _scoring_request(prompt: list[int], fields: dict[str, Any], known: int) -> VllmRequest:
    # The keys and values of the first `known` tokens may be cached, because these tokens need no log-probability.
    return VllmRequest(prompt=prompt, fields={**fields, "skip_reading_prefix_cache": False}, known=known)


def _was_scored(answer: Any) -> bool:
    # An aborted pass over a prompt has no sampled token.
    return bool(
        answer is not None and answer.prompt_logprobs is not None and answer.outputs and answer.outputs[0].token_ids
    )


def parameters(sampling: Sampling, *, speculates: bool) -> dict[str, Any]:
    """Return the fields of vLLM's ``SamplingParams`` except ``seed``.

    turntree's seed is sent separately, as ``request_wire.SEED``. A turn ends only at ``stop_token_ids``, not at the
    model's own end tokens.

    Raises:
        UnsupportedSampling: If vLLM would silently draw from another distribution, or refuse the request later.
    """
    if 0 < sampling.temperature < _MIN_TEMPERATURE:
        raise UnsupportedSampling(
            f"vLLM raises temperatures below {_MIN_TEMPERATURE} to {_MIN_TEMPERATURE}, got "
            f"{sampling.temperature}; use 0 for greedy"
        )
    if speculates and sampling.min_p > 0:
        raise UnsupportedSampling(
            f"vLLM does not apply min_p where it verifies drafts, got min_p={sampling.min_p}; set it to 0, use top_p "
            "or top_k, or switch speculation off"
        )
    return {
        **sampling_fields(sampling),
        "top_k": max(sampling.top_k, 0),
        "max_tokens": sampling.max_tokens,
        "ignore_eos": True,
        "logprobs": sampling.top_logprobs,
    }


def scoring_parameters(top: int) -> dict[str, Any]:
    """Return the fields that score a prompt at temperature 1.

    vLLM then returns log-probabilities of each prompt token, of the token after the prompt, and of the ``top`` most
    probable tokens at each position (-1: all tokens).
    """
    return {"temperature": 1.0, "max_tokens": 1, "ignore_eos": True, "prompt_logprobs": top, "logprobs": top}


def completion(
    token_ids: Sequence[int], readings: TokenLogprobs, finish_reason: str | None, sampling: Sampling
) -> Completion:
    """Return a sampled turn, without draft counters."""
    greedy = sampling.temperature == 0
    logprobs = tuple(readings.chosen.tolist())
    top = None
    if sampling.top_logprobs:
        best = readings.logprobs.astype(np.float32)
        if greedy:  # the sampler's distribution has one token; vLLM reports the model's distribution
            best[:, 0], best[:, 1:] = 0.0, -np.inf
        top = TopLogprobs(ids=readings.ids, logprobs=best)
    return Completion(
        token_ids=tuple(token_ids),
        logprobs=logprobs,
        behaviour_logprobs=(0.0,) * len(logprobs) if greedy else logprobs,
        finish_reason=_FINISH_REASONS.get(finish_reason or "abort", FinishReason.ABORT),
        top=top,
    )


def schedules_by_priority(engine: Any) -> bool:
    return bool(engine.vllm_config.scheduler_config.policy == "priority")


def sampling_params(fields: dict[str, Any]) -> Any:
    from vllm import SamplingParams

    return read_at_end(SamplingParams(**fields))


def read_at_end(parameters: Any) -> Any:
    """Make vLLM return only token ids and log-probabilities, once, when the request ends.

    Stop strings still end the request. ``parameters`` (vLLM's ``SamplingParams``) is modified in place.
    """
    from vllm.sampling_params import RequestOutputKind

    parameters.output_kind = RequestOutputKind.FINAL_ONLY
    parameters.detokenize = bool(parameters.stop)
    parameters.flat_logprobs = True
    return parameters
