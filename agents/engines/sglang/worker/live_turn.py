"""A turn that SGLang is sampling, in the drafter's view.

``Served`` lists all attributes of SGLang's requests that are used, so that nothing
here depends on its version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from turntree.agents.engines.drafting.session import DraftTurn
from turntree.agents.engines.request_wire import draft_of, turn_state
from turntree.spec_tree import DialogueState


class Served(Protocol):
    """The attributes of a request that are used."""

    @property
    def rid(self) -> str:
        """SGLang's id of the request."""
        ...

    @property
    def origin_input_ids(self) -> Sequence[int]:
        """Token ids of the prompt."""
        ...

    @property
    def output_ids(self) -> Sequence[int]:
        """Sampled tokens."""
        ...

    @property
    def sampling_params(self) -> Any:
        """SGLang's ``SamplingParams``."""
        ...

    @property
    def finished_reason(self) -> Any:
        """Why it ended; ``None`` while it has not."""
        ...


@dataclass(slots=True, kw_only=True)
class LiveTurn(DraftTurn):
    """A turn in progress."""

    request: Served
    """The request that it belongs to."""
    state: DialogueState
    """Its dialogue state."""

    @classmethod
    def of(cls, request: Served) -> LiveTurn:
        """A turn that has not begun."""
        entries = request.sampling_params.custom_params
        return cls(request=request, state=turn_state(entries, request.origin_input_ids), guess=draft_of(entries))

    @property
    def room(self) -> int:
        """Most tokens of a draft: the policy adds one."""
        most = self.request.sampling_params.max_new_tokens
        return max(0, (1 << 20 if most is None else most) - len(self.request.output_ids) - 1)

    @property
    def keeps(self) -> bool:
        """Whether the turn may draft others: it ended regularly."""
        reason = self.request.finished_reason
        return reason is not None and reason.to_json().get("type") in ("stop", "length")

    @property
    def news(self) -> list[int]:
        """Sampled tokens that the store was not told yet."""
        return list(self.request.output_ids[self.committed :])
