"""SGLang's requests in the drafter's view: ``Served`` lists all attributes that are used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from turntree.agents.engines.request_wire import given_of
from turntree.agents.engines.served.drafter import reverified_turn


class Served(Protocol):
    """The attributes of a request that are used."""

    @property
    def rid(self) -> str:
        """SGLang's id of the request."""

    @property
    def origin_input_ids(self) -> Sequence[int]:
        """Token ids of the prompt, and of the turn's first tokens if they were given with it."""

    @property
    def output_ids(self) -> Sequence[int]:
        """Sampled tokens."""

    @property
    def sampling_params(self) -> Any:
        """SGLang's ``SamplingParams``."""

    @property
    def finished_reason(self) -> Any:
        """Why it ended; ``None`` while it has not."""


def given_tokens(request: Served) -> list[int]:
    """First tokens of its turn, which it has not sampled: they stand at the end of its prompt."""
    prompt = request.origin_input_ids
    return list(prompt[len(prompt) - given_of(request.sampling_params.custom_params) :])


def keeps(request: Served) -> bool:
    """Whether its turn may draft others: it ended regularly."""
    reason = request.finished_reason
    return reason is not None and reason.to_json().get("type") in ("stop", "length")


def reverified_tokens(request: Served) -> list[int]:
    """The turn of a verified again request that has ended; empty if it goes on, or if nothing was drawn."""
    entries, sampling = request.sampling_params.custom_params, request.sampling_params
    count = given_of(entries)
    drawn = _drawn(request)[-count:]
    if len(drawn) < count:
        return []
    return reverified_turn(entries, request.origin_input_ids, drawn, sampling.stop_token_ids or ())


def _drawn(request: Served) -> list[int]:
    """The drawn tokens: each stands twice."""
    rows = [row for row in getattr(request, "input_top_logprobs_idx", None) or [] if row]
    return [int(row[0]) for row in rows] if all(len(row) == 2 and row[0] == row[1] for row in rows) else []
