"""Requests of a scheduler that runs ahead of the sampled tokens.

SGLang 0.5.23 starts a pass before it has added the last one's tokens to the
requests; each pass hands its tokens to the next. Mostly those are not yet in the
request then, but they are if a pass for prompts came between, or if nothing
could be started. So the missing ones are counted, by the keys and values that
the cache holds of the request. (Otherwise tokens could be there twice, and if
the turn's limit then cuts them the pass would go on from the wrong one.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turntree.agents.engines.sglang.wire import is_ours


class SeenRequest:
    """A request with the sampled tokens that its scheduler has not recorded yet."""

    def __init__(self, request: Any) -> None:
        """Start with the tokens that the scheduler has recorded."""
        self.request = request
        self._pending: list[int] = []

    @property
    def rid(self) -> str:
        """SGLang's id of the request."""
        return str(self.request.rid)

    @property
    def origin_input_ids(self) -> Sequence[int]:
        """Token ids of the prompt."""
        return list(self.request.origin_input_ids)

    @property
    def sampling_params(self) -> Any:
        """SGLang's ``SamplingParams``."""
        return self.request.sampling_params

    @property
    def finished_reason(self) -> Any:
        """SGLang's reason, ``None`` while the turn goes on."""
        return self.request.finished_reason

    @property
    def output_ids(self) -> list[int]:
        """Sampled tokens, up to the turn's end."""
        request = self.request
        known = list(request.output_ids)
        if request.finished_reason is not None:
            return known if request.finished_len is None else known[: request.finished_len]
        return [*known, *self._until_end(len(known))]

    def hear(self, handed: Sequence[int], length: int) -> None:
        """Record the tokens known at the beginning of a pass.

        Args:
            handed: Tokens of this request from its last pass.
            length: Tokens of the context with keys and values: all but the one sampled last.

        Raises:
            RuntimeError: If tokens of the context are neither known nor handed over.
        """
        request = self.request
        missing = max(0, length + 1 - len(request.origin_input_ids) - len(request.output_ids))
        if missing > len(handed) and request.finished_reason is None:
            raise RuntimeError(
                f"{missing} tokens of request {request.rid} are not known yet and {len(handed)} were handed over; this "
                "version of SGLang schedules in a way that turntree's worker does not know: set "
                "disable_overlap_schedule=True"
            )
        self._pending = list(handed[max(0, len(handed) - missing) :])

    def rest(self) -> None:
        """Drop pending tokens: the request has left the batch, and gets them from the scheduler meanwhile."""
        self._pending = []

    def _until_end(self, known: int) -> list[int]:
        """The pending tokens, up to the end of the turn."""
        most = self.request.sampling_params.max_new_tokens
        pending = self._pending if most is None else self._pending[: max(0, most - known)]
        ends = set(self.request.sampling_params.stop_token_ids or ())
        if not is_ours(self.request.sampling_params.custom_params):
            ends |= set(self.request.eos_token_ids or ())
        stop = next((place for place, token in enumerate(pending) if token in ends), len(pending))
        return pending[: stop + 1]
