"""The settings of the plain forest."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

RUNGS = ("exact", "tools", "task", "env")
"""Names of the rungs of ``DialogueState.ladder()``, narrowest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainConfig:
    """How much a ``PlainForest`` keeps and how it estimates."""

    end_tokens: frozenset[int] = frozenset()
    """Tokens that end a turn; nothing is drafted after one."""
    rollouts_per_state: int = 32
    """Finished turns kept of each dialogue state; the oldest go first."""
    max_tokens: int = 500_000
    """Tokens of finished turns kept in all (250 to 650 bytes each); the least recently used states go first."""
    levels: tuple[tuple[str, int, float], ...] = (
        ("exact", 8, 1.0),
        ("tools", 3, 1.0),
        ("task", 3, 1.0),
        ("env", 3, 1.0),
        ("env", 1, 1.0),
    )
    """Contexts that are counted, narrowest first: rung of the state's ladder, context length in tokens,
    and weight of the next level's opinion, in counts. Neither rung nor length may grow narrower."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "end_tokens", frozenset(self.end_tokens))
        object.__setattr__(self, "levels", tuple((rung, order, prior) for rung, order, prior in self.levels))
        for name in ("rollouts_per_state", "max_tokens"):
            value = getattr(self, name)
            if value < 1:
                raise ValueError(f"PlainConfig.{name} must be at least 1, got {value}")
        if not self.levels or self.levels[0][0] != RUNGS[0]:
            raise ValueError(f"PlainConfig.levels must begin with the rung {RUNGS[0]!r}; got {self.levels}")
        for rung, order, prior in self.levels:
            if rung not in RUNGS:
                raise ValueError(f"a level's rung is one of {', '.join(RUNGS)}; got {rung!r}")
            if order < 1 or prior <= 0:
                raise ValueError(f"a level's length and weight must be positive; got {(rung, order, prior)}")
        for (rung, order, _), (wider, shorter, _) in pairwise(self.levels):
            if RUNGS.index(wider) < RUNGS.index(rung) or shorter > order:
                raise ValueError(f"levels go from narrow to wide: {(wider, shorter)} may not follow {(rung, order)}")
