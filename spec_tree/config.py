"""The settings of a forest."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestConfig:
    """How much a ``SpecForest`` keeps and how it estimates."""

    end_tokens: frozenset[int] = frozenset()
    """Tokens that end a turn; nothing is drafted after one."""
    rollouts_per_state: int = 32
    """Finished turns kept of each dialogue state; the oldest go first."""
    max_tokens: int = 1_000_000
    """Tokens of finished turns kept in all; the least recently used states go first."""
    exact_orders: tuple[int, ...] = (8, 3)
    """Context lengths counted under the exact dialogue state, longest first."""
    wide_orders: tuple[int, ...] = (3,)
    """Context lengths counted under each wider key of the state's ladder, longest first."""
    prior: float = 0.5
    """Weight that a context gives to the opinion of the next wider one, in counts."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "end_tokens", frozenset(self.end_tokens))
        for name in ("rollouts_per_state", "max_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"ForestConfig.{name} must be at least 1, got {value}")
        for name in ("exact_orders", "wide_orders"):
            orders = getattr(self, name)
            if any(order < 1 for order in orders) or list(orders) != sorted(set(orders), reverse=True):
                raise ValueError(f"ForestConfig.{name} must fall and stay positive, as (8, 3); got {orders}")
        if not self.exact_orders:
            raise ValueError("ForestConfig.exact_orders needs at least one context length, as (8, 3)")
        if self.prior <= 0:
            raise ValueError(f"ForestConfig.prior must be positive, got {self.prior}")
