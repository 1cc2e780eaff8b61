"""Re-verification of a draft at the end of a prompt, in vLLM's pass over the prompt.

In a re-verified request (``request_wire``), the last tokens of the prompt are a draft of the turn: the given tokens.
The request asks for log-probabilities of its prompt. At each position of the given tokens, the patch instead returns
the token that vLLM would have sampled there, with its log-probability under the sampling distribution. It computes
nothing for the rest of the prompt. vLLM itself samples the token after the given tokens.

Patches ``_get_prompt_logprobs_dict`` of the model runner object, which vLLM calls with the hidden states after each
pass. Checked with ``compat.CHECKED``; tests: ``test_reverified_prompts.py``.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from turntree.agents.engines.request_wire import given_of, is_reverified, noise_seed
from turntree.agents.engines.vllm.drawing.seeded_draws import constrained, draw

_MARK = "turntree_reverified_prompts"


def install(runner: Any) -> None:
    """Make a model runner re-verify the drafts at the end of prompts."""
    original: Callable[..., dict[str, Any]] = runner._get_prompt_logprobs_dict
    if getattr(original, _MARK, False):
        return

    @functools.wraps(original)
    def prompt_logprobs(hidden: Tensor, scheduled: dict[str, int]) -> dict[str, Any]:
        # Hide re-verified requests from vLLM's own loop, which would compute log-probabilities of the whole prompt.
        waiting: dict[str, int] = runner.num_prompt_logprobs
        reverified = [name for name in waiting if is_reverified(runner.requests[name].sampling_params.extra_args)]
        widths = {name: waiting.pop(name) for name in reverified}
        results = original(hidden, scheduled)
        for name, width in widths.items():
            drawn = _reverify(runner, name, hidden, scheduled.get(name, 0))
            if drawn is None:
                waiting[name] = width  # the prompt continues in the next pass
            else:
                results[name] = drawn
        return results

    setattr(prompt_logprobs, _MARK, True)
    runner._get_prompt_logprobs_dict = prompt_logprobs


def installed(runner: Any) -> bool:
    return bool(getattr(getattr(runner, "_get_prompt_logprobs_dict", None), _MARK, False))


def _reverify(runner: Any, name: str, hidden: Tensor, count: int) -> Any:
    # Returns vLLM's LogprobsTensors, shape (given, 1), once the prompt is processed to its end; None before.
    request = runner.requests[name]
    entries, prompt = request.sampling_params.extra_args, len(request.prompt_token_ids)
    given, start = given_of(entries), request.num_computed_tokens
    tensors = importlib.import_module("vllm.v1.outputs").LogprobsTensors
    drawn = request.in_progress_prompt_logprobs_cpu
    if drawn is None:
        drawn = request.in_progress_prompt_logprobs_cpu = tensors.empty_cpu(given, 1)
    # The logits at a position draw the token after it. vLLM itself samples at the prompt's last position.
    first, last = max(start, prompt - given - 1), min(start + count, prompt - 1)
    if first < last:
        row = runner.input_batch.req_id_to_index[name]
        begin = int(runner.query_start_loc.np[row]) - start
        logits = runner.model.compute_logits(hidden[begin + first : begin + last])
        positions = slice(first - (prompt - given - 1), last - (prompt - given - 1))
        tokens, logprobs = _draws(logits, request.sampling_params, noise_seed(entries) or 0, positions)
        drawn.logprob_token_ids[positions, 0] = tokens.to("cpu", drawn.logprob_token_ids.dtype)
        drawn.logprobs[positions, 0] = logprobs.to("cpu", drawn.logprobs.dtype)
        drawn.selected_token_ranks[positions] = 0
    if start + count < prompt:
        return None
    request.in_progress_prompt_logprobs_cpu = None
    record = getattr(getattr(runner, "drafter", None), "record_given", None)
    if record is not None:
        record(name, drawn.logprob_token_ids[:, 0].tolist())
    return drawn


# Draw the tokens at turn positions `span`; return tokens and log-probabilities, shape (positions,).
def _draws(logits: Tensor, parameters: Any, seed: int, span: slice) -> tuple[Tensor, Tensor]:
    count, size = logits.shape
    scaled = logits.float() / parameters.temperature
    k = torch.full((count,), parameters.top_k, device=scaled.device) if 0 < parameters.top_k < size else None
    p = torch.full((count,), parameters.top_p, device=scaled.device) if parameters.top_p < 1 else None
    scaled = constrained(scaled, k, p)
    seeds, positions = np.full(count, seed, np.uint64), np.arange(span.start, span.stop, dtype=np.int64)
    tokens = draw(scaled, seeds, positions)
    return tokens, scaled.log_softmax(-1, dtype=torch.float32).gather(1, tokens.long()[:, None])[:, 0]
