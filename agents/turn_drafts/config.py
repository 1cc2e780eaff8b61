"""Settings of turn-level drafts, by source. Imports only the standard library."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


class ReuseMode(StrEnum):
    """Use of an earlier turn at the same state."""

    NONE = "none"
    """Do not reuse turns; the draft store's trees may still draft from them."""
    SAME_SEED = "same_seed"
    """Verify the turn by its own seed under the current policy; equals plain decoding."""
    REJECTION_SAMPLING = "rejection_sampling"
    """Keep tokens by the ratio of new to old probability, sample the rest; exact in distribution."""
    SPEC_RL = "spec_rl"
    """As ``REJECTION_SAMPLING``, but keep more tokens (SPEC-RL, arXiv 2509.23232). Biased: level D."""


PRESETS = {"grpo": 0.5, "ppo": 0.3, "dapo": 0.15}  #: logarithm of the lenience in SPEC-RL's paper, by algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseConfig:
    """Section ``turntree.reuse`` of a training configuration."""

    mode: ReuseMode = ReuseMode.NONE
    """Use of an earlier turn: none, same_seed, rejection_sampling or spec_rl."""
    preset: str | None = None
    """Lenience of SPEC-RL's paper for an algorithm: grpo, ppo or dapo. Only for ``spec_rl``."""
    bias: float | None = None
    """Logarithm of the lenience, instead of ``preset``; 0 is exact. Only for ``spec_rl``."""
    max_tokens: int = 1_000_000
    """Most stored tokens, at 8 bytes each plus 8 bytes per ``top_k`` token; the oldest turns are dropped first."""
    # A stored token that is not among its recorded top tokens is rejected. A broad distribution therefore needs many
    # recorded tokens, or sampling with `top_k`. With few recorded tokens, reuse is rarer but as exact.
    top_k: int = 64
    """Most probable tokens recorded per stored token, for ``rejection_sampling`` and ``spec_rl``."""
    fresh: float = 0.0
    """Fraction of turns sampled anew although an earlier turn is stored."""
    early: bool = True
    """Verify an episode's later stored turns before they are requested; see ``StoredTurns``."""

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
    """Fraction of the engine's slots that precomputed turns may hold, in (0, 1]."""
    tokens: int | None = None
    """Most tokens that one training step may precompute; running turns are finished. ``None``: no limit."""
    # Where engine and update share a device, precomputing slows the update. On a GPU, the engine frees its memory for
    # the update and cannot precompute at all.
    during_update: bool | None = None
    """Precompute during the update of the policy; ``None`` does so with the local engine on the CPU."""
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
        """Return the number of slots out of ``batch`` that precomputed turns may hold.

        >>> RunAheadConfig(share=0.25).slots(32)
        8
        """
        return max(1, int(self.share * batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallsAheadConfig:
    """Section ``turntree.tool_calls_ahead`` of a training configuration."""

    enabled: bool = False
    """Make speculative tool calls, in forks of a ``forkable`` environment or of a ``pure`` tool."""
    min_probability: float = 0.5
    """Make a turn's calls if the estimated probability of all turns up to it is at least this, in (0, 1]."""

    def __post_init__(self) -> None:
        if not isinstance(self.enabled, bool):
            raise ValueError(f"enabled must be true or false, got {self.enabled!r}")
        if not 0 < self.min_probability <= 1:
            raise ValueError(
                f"min_probability must lie in (0, 1], got {self.min_probability}; enabled=false switches it off"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationConfig:
    """Section ``turntree.validation`` of a training configuration."""

    coupled: bool = False
    """Use the same noise in every validation, so that each validation replays the last validation."""
    max_tokens: int = 1_000_000
    """Most tokens of the last validation held by a replica, 4 bytes each; other turns are sampled anew."""

    def __post_init__(self) -> None:
        if not isinstance(self.coupled, bool):
            raise ValueError(f"coupled must be true or false, got {self.coupled!r}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}; coupled=false stores no tokens")
