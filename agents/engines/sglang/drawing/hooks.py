"""Hooks that install turntree's sampling in SGLang 0.5.12, through SGLang's hook registry.

In an engine without turntree's draft worker, SGLang samples batches without turntree's requests unchanged. SGLang also
computes log-probabilities, penalties and grammars as before. Tests: ``test_draws.py``, ``test_reverify.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from turntree.agents.engines.sglang.drawing import draws, reverify
from turntree.agents.engines.sglang.drawing.draws import draw, noises_of, reshaped
from turntree.agents.engines.sglang.wire import is_ours

_INFO = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo"
_LOGITS = "sglang.srt.layers.logits_processor.LogitsProcessor"


def install() -> None:
    """Register the hooks, once per process; SGLang applies them when all plugins are loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    around = {
        f"{_INFO}.from_schedule_batch": draws.from_schedule_batch,
        f"{_INFO}.filter_batch": draws.filter_batch,
        f"{_INFO}.merge_batch": draws.merge_batch,
        f"{_INFO}.copy_for_forward": draws.copy_for_forward,
        "sglang.srt.layers.sampler.Sampler._sample_from_probs": _sample_from_probs,
        f"{_LOGITS}.forward": reverify.forward,
        f"{_LOGITS}._get_logits": reverify.get_logits,
        "sglang.srt.managers.schedule_batch.Req._check_token_based_finish": _check_token_based_finish,
        "sglang.srt.speculative.ngram_info.NgramVerifyInput._sampling_verify": draws.sampling_verify,
    }
    for target, hook in around.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def _sample_from_probs(
    original: Callable[..., Any], sampler: Any, probs: Tensor, sampling: Any, positions: Tensor, *rest: Any
) -> Any:
    # Draw for the whole batch. Requests of other clients get fresh noise, which leaves their distribution unchanged.
    noises = noises_of(sampling)
    if noises is None:
        return original(sampler, probs, sampling, positions, *rest)
    return draw(reshaped(probs, sampling), noises, positions).to(torch.int32)


def _check_token_based_finish(original: Callable[..., bool], request: Any, *rest: Any, **options: Any) -> bool:
    # A turn ends only at its own stop tokens, whatever the model's end tokens are.
    if not is_ours(request.sampling_params.custom_params):
        return original(request, *rest, **options)
    # SGLang reads end tokens from these two attributes.
    ends, tokenizer = request.eos_token_ids, request.tokenizer
    request.eos_token_ids, request.tokenizer = None, None
    try:
        return original(request, *rest, **options)
    finally:
        request.eos_token_ids, request.tokenizer = ends, tokenizer
