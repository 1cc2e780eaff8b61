"""What every engine offers: token ids in, token ids out.

An engine never sees text. ``state`` names the dialogue state for the drafter;
an engine without speculation ignores it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from turntree.spec_tree import DialogueState


class FinishReason(StrEnum):
    """Why the engine stopped."""

    STOP = "stop"
    """A stop token was sampled; it is the last token of the completion."""
    LENGTH = "length"
    """``max_tokens`` or the context ran out."""
    ABORT = "abort"
    """The request was aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Names and meanings follow vLLM's ``SamplingParams``."""

    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass, in (0, 1]."""
    top_k: int = -1
    """Number of tokens kept; -1 keeps all."""
    max_tokens: int = 256
    """Tokens sampled at most."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the turn."""
    seed: int | None = None
    """With a seed the noise depends on seed and position alone; without one it is fresh."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be 0 (greedy) or positive, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must lie in (0, 1], got {self.top_p}")
        if self.top_k != -1 and self.top_k < 1:
            raise ValueError(f"top_k must be -1 (all) or at least 1, got {self.top_k}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStats:
    """Speculation counters of one request."""

    verify_steps: int = 0
    """Forward passes in which the request sampled tokens."""
    drafted: int = 0
    """Draft tokens that were verified."""
    accepted: int = 0
    """Draft tokens that the policy itself sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled turn."""

    token_ids: tuple[int, ...]
    """Sampled tokens, the stop token included, shape (tokens,)."""
    logprobs: tuple[float, ...]
    """Natural log-probability of each token under the policy at its temperature, before top-k and
    top-p (at temperature 0: at temperature 1), shape (tokens,)."""
    finish_reason: FinishReason
    """Why the engine stopped."""
    draft: DraftStats = field(default_factory=DraftStats)
    """Speculation counters."""
    accepted: tuple[bool, ...] = ()
    """Which tokens were drafted and accepted, shape (tokens,); empty where the engine cannot tell."""
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were reused."""
    weights_version: int = 0
    """Version of the policy's weights that sampled the turn."""


@runtime_checkable
class Engine(Protocol):
    """Generates turns."""

    async def generate(
        self, prompt_ids: tuple[int, ...], sampling: Sampling, *, state: DialogueState | None = None
    ) -> Completion:
        """Sample one turn after ``prompt_ids``."""
        ...
