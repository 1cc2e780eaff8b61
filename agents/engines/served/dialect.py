from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from turntree.agents.engines.protocol import Completion, Sampling, TurnRequest
from turntree.agents.engines.token_logprobs import TokenLogprobs

_ALIKE = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


class UnsupportedSampling(ValueError):
    """The engine cannot sample with the requested parameters."""


class Dialect(Protocol):
    """Writes requests to an external engine and reads its answers, for ``ServedTurns``; sends nothing itself.

    Requests and answers are the engine's own types. The answer ``None`` stands for a request that was aborted before it
    began. The caller fills in the version of the weights.
    """

    priority_setting: ClassVar[str]  #: argument that enables the engine's priority scheduling, for messages
    #: context tokens that a re-verified draft must leave free: 1 if the engine always samples a token after the draft
    spare: ClassVar[int]

    def reverifies(self, sampling: Sampling) -> bool:
        """Return whether the engine samples at the positions of a draft exactly as in decoding."""

    def turn(self, request: TurnRequest, given: int) -> Any:
        """Return the request for the rest of a turn; its first ``given`` tokens are the prompt's last.

        Raises:
            UnsupportedSampling: If the engine would silently draw from another distribution, or refuse later.
        """

    def reverify(self, request: TurnRequest) -> Any:
        """Return the request for one pass that samples a token at each position of the turn's draft."""

    def scoring(self, whole: Sequence[int], known: int, top: int) -> Any:
        """Return the request for log-probabilities at temperature 1 of the tokens from ``known`` on.

        Includes the ``top`` most probable tokens at each position and after the last.
        """

    def again(self, asked: Any, answer: Any) -> Any:
        """Return the request to repeat if ``answer`` lacks a requested part, else ``None``."""

    def completion(self, answer: Any, sampling: Sampling) -> Completion:
        """Read the answer to ``turn``."""

    def drawn(self, answer: Any, request: TurnRequest) -> Completion | None:
        """Read the answer to ``reverify``: one token per draft token, or an aborted turn; ``None`` if refused."""

    def scored(self, answer: Any, tokens: Sequence[int], top: int) -> tuple[TokenLogprobs, int] | None:
        """Read the answer to ``scoring``: the log-probabilities and the number of cached tokens.

        ``None`` if the request was aborted.
        """


def sampling_fields(sampling: Sampling) -> dict[str, Any]:
    return {name: getattr(sampling, name) for name in _ALIKE} | {"stop_token_ids": list(sampling.stop_token_ids)}
