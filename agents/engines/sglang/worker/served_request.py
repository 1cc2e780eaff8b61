from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from turntree.agents.engines.request_wire import given_of
from turntree.agents.engines.served.drafter import reverified_turn


class Served(Protocol):
    """The attributes of SGLang's requests that the drafter uses."""

    @property
    def rid(self) -> str: ...

    @property
    def origin_input_ids(self) -> Sequence[int]:
        """Token ids of the prompt, including the turn's first tokens if they were given with it."""

    @property
    def output_ids(self) -> Sequence[int]:
        """Sampled tokens."""

    @property
    def sampling_params(self) -> Any:
        """SGLang's ``SamplingParams``."""

    @property
    def finished_reason(self) -> Any:
        """Why the request ended; ``None`` while it is live."""


def given_tokens(request: Served) -> list[int]:
    prompt = request.origin_input_ids
    return list(prompt[len(prompt) - given_of(request.sampling_params.custom_params) :])


def keeps(request: Served) -> bool:
    """Return whether the request ended regularly, so that its turn may be drafted from."""
    reason = request.finished_reason
    return reason is not None and reason.to_json().get("type") in ("stop", "length")


def reverified_tokens(request: Served) -> list[int]:
    """Return the turn of a re-verified request; empty if it continues, or if nothing was drawn."""
    entries, sampling = request.sampling_params.custom_params, request.sampling_params
    count = given_of(entries)
    drawn = _drawn(request)[-count:]
    if len(drawn) < count:
        return []
    return reverified_turn(entries, request.origin_input_ids, drawn, sampling.stop_token_ids or ())


def _drawn(request: Served) -> list[int]:
    # `reverify` writes each drawn token twice.
    rows = [row for row in getattr(request, "input_top_logprobs_idx", None) or [] if row]
    return [int(row[0]) for row in rows] if all(len(row) == 2 and row[0] == row[1] for row in rows) else []
