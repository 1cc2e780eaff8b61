"""Turns whose first tokens came with the prompt, and that ended in a pass over it.

The drafter sees a request when it decodes. A turn that was judged (``drawing.judging``)
or went on after given tokens may end before: then its tokens are recorded here. A judged
request's tokens are the turn only if they end it; otherwise another request goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turntree.agents.engines.request_wire import given_of
from turntree.agents.engines.served.drafter import judged_turn
from turntree.agents.engines.sglang.worker.served_request import Served


class GivenTurns:
    """Requests with given tokens between their pass over the prompt and their first step."""

    def __init__(self) -> None:
        """Start without any."""
        self._waiting: dict[str, Served] = {}

    def record_given(self, requests: Sequence[Served]) -> None:
        """Record the requests of a pass over prompts."""
        for request in requests:
            if given_of(request.sampling_params.custom_params):
                self._waiting[request.rid] = request

    def decodes(self, request: Served) -> None:
        """Leave a request that is decoded to the drafter."""
        self._waiting.pop(request.rid, None)

    def ended(self) -> list[Served]:
        """The requests that have ended since the last call."""
        ended = [request for request in self._waiting.values() if request.finished_reason is not None]
        for request in ended:
            del self._waiting[request.rid]
        return ended


def judged_tokens(request: Any) -> list[int]:
    """The turn of a judged request that has ended; empty if it goes on, or if nothing was drawn."""
    entries, sampling = request.sampling_params.custom_params, request.sampling_params
    count = given_of(entries)
    drawn = _drawn(request)[-count:]
    if len(drawn) < count:
        return []
    return judged_turn(entries, request.origin_input_ids, drawn, sampling.stop_token_ids or ())


def _drawn(request: Any) -> list[int]:
    """The drawn tokens: each stands twice."""
    rows = [row for row in getattr(request, "input_top_logprobs_idx", None) or [] if row]
    return [int(row[0]) for row in rows] if all(len(row) == 2 and row[0] == row[1] for row in rows) else []
