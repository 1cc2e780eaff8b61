"""How much is made ahead. Nothing here needs more than the standard library."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAheadConfig:
    """Section ``turntree.run_ahead`` of a training configuration."""

    enabled: bool = False
    """Make the next step's rollouts ahead, in slots that nobody wants."""
    share: float = 0.5
    """Share of the engine's slots that turns made ahead may hold, in (0, 1]."""
    tokens: int | None = None
    """Tokens that one training step may make ahead; turns that are under way when it is spent are finished.
    ``None`` is no bound."""
    during_update: bool = True
    """Go on while the trainer updates the policy. Where it computes on the engine's own device, that slows it."""
    max_tokens: int = 1_000_000
    """Tokens made ahead that wait for their step, at most."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1], got {self.share}; enabled=false makes nothing ahead")
        if self.tokens is not None and self.tokens < 1:
            raise ValueError(f"tokens must be at least 1 or null, got {self.tokens}; enabled=false makes nothing ahead")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")

    def slots(self, batch: int) -> int:
        """Slots of ``batch`` that turns made ahead may hold.

        >>> RunAheadConfig(share=0.25).slots(32)
        8
        """
        return max(1, int(self.share * batch))
