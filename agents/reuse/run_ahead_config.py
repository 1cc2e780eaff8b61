"""Configuration of precomputed rollouts. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass


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
