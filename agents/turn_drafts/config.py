"""Configuration of what turns may begin with, by source. Imports the standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class ReuseMode(StrEnum):
    """Use of an earlier turn at the same state."""

    NONE = "none"
    """None; the store of trees may still draft from it."""
    SAME_SEED = "same_seed"
    """The turn is drawn again with its own seed under the current policy: the result of plain decoding."""
    REJECTION_SAMPLING = "rejection_sampling"
    """Its tokens are kept by the ratio of new to old probability; the rest is sampled. Exact in distribution."""
    SPEC_RL = "spec_rl"
    """As ``REJECTION_SAMPLING``, but more is kept than is exact (SPEC-RL, arXiv 2509.23232). Biased: level D."""


PRESETS = {"grpo": 0.5, "ppo": 0.3, "dapo": 0.15}
"""Logarithms of the lenience in SPEC-RL's paper, by algorithm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseConfig:
    """Section ``turntree.reuse`` of a training configuration."""

    mode: ReuseMode = ReuseMode.NONE
    """Use of an earlier turn: none, same_seed, rejection_sampling or spec_rl."""
    preset: str | None = None
    """Lenience of SPEC-RL's paper for an algorithm: grpo, ppo or dapo. Only for ``spec_rl``."""
    bias: float | None = None
    """Lenience as its logarithm, instead of ``preset``; 0 accepts as ``rejection_sampling`` does. Only for ``spec_rl``."""
    max_tokens: int = 1_000_000
    """Most tokens that the stored turns may have; the oldest turns are dropped first. A stored token takes
    8 bytes, and 8 more for each of ``top_k``."""
    top_k: int = 64
    """Most probable tokens kept with each stored token, for ``rejection_sampling`` and ``spec_rl``. A stored token that is not
    among them is rejected, so a broad distribution needs many, or sampling with ``top_k``; few cost no exactness."""
    fresh: float = 0.0
    """Share of the turns that are sampled anew although an earlier one is stored."""
    early: bool = True
    """Whether an episode's later stored turns are verified, and its tool calls made in copies of the environment,
    before the earlier turns are known to be sampled again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", ReuseMode(self.mode))
        if self.mode is not ReuseMode.SPEC_RL and (self.preset is not None or self.bias is not None):
            raise ValueError(f"preset and bias belong to mode spec_rl, got mode {self.mode}")
        if self.preset is not None and self.bias is not None:
            raise ValueError(f"give preset or bias, not both; got preset {self.preset!r} and bias {self.bias}")
        if self.preset is not None and self.preset not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {self.preset!r}")
        if self.mode is ReuseMode.SPEC_RL and self.preset is None and self.bias is None:
            raise ValueError(f"mode spec_rl needs preset ({', '.join(PRESETS)}) or bias, for example bias=0.5")
        if self.bias is not None and not 0 <= self.bias < math.inf:
            raise ValueError(f"bias must be finite and not negative, got {self.bias}")
        for name in ("max_tokens", "top_k"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not isinstance(self.early, bool):
            raise ValueError(f"early must be true or false, got {self.early!r}")
        if not 0 <= self.fresh <= 1:
            raise ValueError(f"fresh must lie in [0, 1], got {self.fresh}")

    @property
    def lenience(self) -> float:
        """Factor on the ratio of new to old probability; 1 is exact.

        >>> round(ReuseConfig(mode=ReuseMode.SPEC_RL, preset="grpo").lenience, 3)
        1.649
        """
        if self.mode is not ReuseMode.SPEC_RL:
            return 1.0
        bias = self.bias if self.preset is None else PRESETS[self.preset]
        assert bias is not None
        return math.exp(bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAheadConfig:
    """Section ``turntree.run_ahead`` of a training configuration."""

    enabled: bool = False
    """Precompute the next step's rollouts in idle slots of the engine."""
    share: float = 0.5
    """Share of the engine's slots that precomputed turns may hold, in (0, 1]."""
    tokens: int | None = None
    """Tokens that one training step may precompute; turns under way when the budget is spent are finished.
    ``None`` is no bound."""
    during_update: bool | None = None
    """Go on while the trainer updates the policy; where both share a device, that slows the update. ``None`` does with
    the local engine on the CPU; engines on a GPU give their memory back then, and cannot."""
    max_tokens: int = 1_000_000
    """Most precomputed tokens held for their step."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {self.share}; enabled=false precomputes nothing")
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"tokens must be at least 1 or null, got {self.tokens}; enabled=false precomputes nothing")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")

    def slots(self, batch: int) -> int:
        """Slots of ``batch`` that precomputed turns may hold.

        >>> RunAheadConfig(share=0.25).slots(32)
        8
        """
        return max(1, int(self.share * batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallsAheadConfig:
    """Section ``turntree.tool_calls_ahead`` of a training configuration."""

    enabled: bool = False
    """Make tool calls before their turns are sampled, where earlier episodes tell them: in forks of a ``forkable``
    environment, or of a tool that is ``pure``."""
    min_probability: float = 0.5
    """Estimated probability of a turn, together with those before it, from which on they are made, in (0, 1]."""

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise ValueError(f"enabled must be true or false, got {self.enabled!r}")
        if not 0 < self.min_probability <= 1:
            raise ValueError(
                f"min_probability must lie in (0, 1], got {self.min_probability}; enabled=false makes no calls ahead"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationConfig:
    """Section ``turntree.validation`` of a training configuration."""

    coupled: bool = False
    """Use the same noise at every validation, so that each replays the last one."""
    max_tokens: int = 1_000_000
    """Most tokens that a replica holds of the last validation, 4 bytes each; further turns are sampled anew."""

    def __post_init__(self) -> None:
        if not isinstance(self.coupled, bool):
            raise ValueError(f"coupled must be true or false, got {self.coupled!r}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}; coupled=false holds none")
