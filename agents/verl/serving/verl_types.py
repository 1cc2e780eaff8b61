"""Conversion of verl's requests, and of a completion to verl's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl.workers.rollout.replica import TokenOutput

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, Sampling, TurnRequest
from turntree.agents.engines.request_wire import APART, SAMPLE, seed_of, state_of
from turntree.agents.verl.config.sections import from_mapping, unknown_key
from turntree.spec_tree import DialogueState

_IGNORED = ("logprobs", "ignore_eos")
"""Log-probabilities are always returned, and a turn ends only at its own stop tokens."""
_ENTRIES = ("extra_args", "custom_params")
"""Parameters of vLLM and SGLang that hold the entries of ``request_wire``."""
_DRAFT = {
    "spec_num_verify_steps": "verify_steps",
    "spec_num_draft_tokens": "drafted",
    "spec_num_accepted_tokens": "accepted",
}
"""verl's names of the fields of ``DraftStats``."""
_STOP_REASONS = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "aborted",
}


def to_request(
    prompt_ids: Sequence[int], parameters: Mapping[str, Any], *, default_max_tokens: int
) -> TurnRequest | None:
    """Read a request to an external engine.

    Args:
        prompt_ids: Token ids, shape (prompt,).
        parameters: verl's sampling parameters, with the entries that ``server_call`` adds.
        default_max_tokens: Most tokens if the parameters name no bound.

    Returns:
        ``None`` if turntree's agent loop did not send it.

    Raises:
        ConfigError: As ``to_sampling``.
    """
    entries = _entries(parameters)
    state = state_of(entries)
    if entries is None or state is None:
        return None
    plain = {name: value for name, value in parameters.items() if name not in _ENTRIES}
    sampling = to_sampling(plain | {"seed": seed_of(entries)}, default_max_tokens=default_max_tokens)
    reuse, sample = not entries.get(APART), int(entries.get(SAMPLE, 0))
    return TurnRequest(tuple(prompt_ids), sampling, state=state, reuse=reuse, sample=sample)


def trained_state(parameters: Mapping[str, Any]) -> DialogueState | None:
    """The dialogue state of a request to an external engine; ``None`` if turntree's agent loop did not send it, and of
    a validation's."""
    entries = _entries(parameters)
    return None if entries is None or entries.get(APART) else state_of(entries)


def _entries(parameters: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((parameters[name] for name in _ENTRIES if parameters.get(name)), None)


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
            **draft_fields(completion.draft),
            "accepted": list(completion.accepted),
            "levels": completion.levels,
            "behaviour_logprobs": list(completion.behaviour_logprobs),
        },
    )


def draft_fields(draft: DraftStats) -> dict[str, int]:
    """The speculation counters of a turn under verl's names."""
    return {name: getattr(draft, ours) for name, ours in _DRAFT.items()}


def draft_of(fields: Mapping[str, Any], *, steps: int = 0) -> DraftStats:
    """Read what ``draft_fields`` wrote; a server that drafts nothing may have left it out.

    Args:
        fields: ``TokenOutput.extra_fields``.
        steps: The verify steps of a turn without counters.
    """
    given = {"spec_num_verify_steps": steps, **fields}
    return DraftStats(**{ours: given.get(name) or 0 for name, ours in _DRAFT.items()})
