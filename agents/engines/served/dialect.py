"""How requests to an external engine are written and its answers read: the conversions that ``ServedTurns`` uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from turntree.agents.engines.protocol import Completion, Sampling, TurnRequest
from turntree.agents.engines.token_logprobs import TokenLogprobs

_ALIKE = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


class UnsupportedSampling(ValueError):
    """The engine cannot sample with the requested parameters."""


class Dialect(Protocol):
    """Requests and answers are the engine's own; nothing is sent here. ``None`` is the answer to a request that was
    aborted before it began. Completions leave the version of the weights to the caller."""

    priority_setting: ClassVar[str]
    """The argument with which the engine schedules by priority, as a message names it."""
    spare: ClassVar[int]
    """Places of the context that a verified again draft leaves free: 1 if the engine must sample a token behind it."""

    def reverifies(self, sampling: Sampling) -> bool:
        """Whether the engine can draw at the positions of a draft as it draws in decoding."""

    def turn(self, request: TurnRequest, given: int) -> Any:
        """The request for a turn whose first ``given`` tokens stand at the end of the prompt.

        Raises:
            UnsupportedSampling: If the engine would silently draw from another distribution, or refuse later.
        """

    def reverify(self, request: TurnRequest) -> Any:
        """The request for one pass that draws a token at each position of the turn's draft."""

    def scoring(self, whole: Sequence[int], known: int, top: int) -> Any:
        """The request for the log-probabilities at temperature 1 of each token of ``whole`` but the first ``known``,
        and of the ``top`` most probable ones there and behind the last."""

    def again(self, asked: Any, answer: Any) -> Any:
        """The request to send where ``answer`` lacks something that ``asked`` wants; ``None`` where it does not."""

    def completion(self, answer: Any, sampling: Sampling) -> Completion:
        """The answer to ``turn``."""

    def drawn(self, answer: Any, request: TurnRequest) -> Completion | None:
        """The answer to ``reverify``: a token for each of the draft, or an aborted turn; ``None`` if none was drawn."""

    def scored(self, answer: Any, tokens: Sequence[int], top: int) -> tuple[TokenLogprobs, int] | None:
        """The answer to ``scoring``: what is at the scored ``tokens`` and behind them, and the number of cached
        tokens; ``None`` if the request was aborted."""


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    """Parameters that vLLM and SGLang have under the same names with the same values."""
    return {name: getattr(sampling, name) for name in _ALIKE} | {"stop_token_ids": list(sampling.stop_token_ids)}
