"""The configuration section for sharing finished turns between the replicas of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeSettings:
    """Section ``rollout.engine_kwargs.turntree.exchange``: how replicas share their turns, whatever the engine."""

    max_bytes: int = 1 << 28
    """Memory of the hub's log, bytes."""
    homes: int = 2
    """A replica fetches the turns of tasks for which it is among the first so many in the routing order; 0 fetches
    all turns. With 2, the replica that takes over a task from a lost or full one has its turns already."""
    max_tokens: int = 1 << 22
    """Most tokens of one fetch, the newest first."""

    def __post_init__(self) -> None:
        if self.max_bytes < 1 or self.max_tokens < 1:
            raise ValueError(f"max_bytes and max_tokens must be positive, got {self.max_bytes} and {self.max_tokens}")
        if self.homes < 0:
            raise ValueError(f"homes must not be negative (0 fetches all turns), got {self.homes}")
