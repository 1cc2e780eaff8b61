"""A turn that SGLang is sampling, in the drafter's view.

``Served`` lists all attributes of SGLang's requests that are used, so that nothing
here depends on its version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from turntree.agents.engines.drafting.session import DraftTurn
from turntree.agents.engines.served.drafter import AskedTurn
from turntree.spec_tree import DialogueState


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


@dataclass(slots=True, kw_only=True, eq=False)
class LiveTurn(DraftTurn):
    """A turn in progress."""

    request: Served
    """The request that it belongs to."""
    state: DialogueState
    prompt: list[int]
    """Token ids of the prompt."""
    given: list[int]
    """First tokens of the turn, which the request has not sampled."""

    @classmethod
    def of(cls, request: Served, vocabulary: int = 1 << 31) -> LiveTurn:
        """The turn of a request that has not begun; see ``AskedTurn.of``."""
        asked = AskedTurn.of(request.sampling_params.custom_params, request.origin_input_ids, vocabulary)
        return cls(request=request, **asked._asdict())

    @property
    def sampled(self) -> Sequence[int]:
        """Tokens of the turn so far."""
        return [*self.given, *self.request.output_ids] if self.given else self.request.output_ids

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
        """Sampled tokens not committed to the store yet."""
        return list(self.sampled[self.committed :])
