"""Conversion of a request of verl's own, and of a completion to verl's form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling
from turntree.agents.verl.config.sections import from_mapping, unknown_key

_IGNORED = ("logprobs", "ignore_eos")
"""Log-probabilities are always returned, and a turn ends only at its own stop tokens."""
_STOP_REASONS = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "aborted",
}


def to_sampling(parameters: Mapping[str, Any], *, default_max_tokens: int) -> Sampling:
    """Read verl's sampling parameters.

    Raises:
        ConfigError: If a parameter is unknown, or its value is invalid.
    """
    known = [name for name in Sampling.__dataclass_fields__]
    values: dict[str, Any] = {"max_tokens": default_max_tokens}
    for name, value in parameters.items():
        if name in known:
            values[name] = tuple(value) if name == "stop_token_ids" else value
        elif name not in _IGNORED:
            raise unknown_key(name, [*known, *_IGNORED], "the sampling parameters")
    return from_mapping(Sampling, values, "the sampling parameters")


def to_token_output(completion: Completion, global_steps: int) -> TokenOutput:
    """A turn in verl's form, with the speculation counters under verl's names."""
    return TokenOutput(
        token_ids=list(completion.token_ids),
        log_probs=list(completion.logprobs),
        stop_reason=_STOP_REASONS[completion.finish_reason],
        extra_fields={
            "global_steps": global_steps,
            "num_cached_tokens": completion.cached_tokens,
            "spec_num_verify_steps": completion.draft.verify_steps,
            "spec_num_draft_tokens": completion.draft.drafted,
            "spec_num_accepted_tokens": completion.draft.accepted,
        },
    )
