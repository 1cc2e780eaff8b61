"""The settings of a forest."""

from __future__ import annotations

import os
from dataclasses import dataclass

_MOST_TOKENS = 2**30
MOST_THREADS = 16
"""Most threads that draft a batch."""
_MOST_TOKEN = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestConfig:
    """Size limits of a ``SpecForest``."""

    end_tokens: frozenset[int] = frozenset()
    """Tokens that end a turn; nothing is drafted after one."""
    rollouts_per_state: int = 32
    """Most finished turns kept of each dialogue state; the oldest go first."""
    max_tokens: int = 4_000_000
    """Positions of the token log, the indexed part: about 24 bytes each, allocated as needed."""
    max_cold_tokens: int = 40_000_000
    """Most tokens kept without an index, 2 to 4 bytes each; the least recently used states go first."""
    max_context_tokens: int = 1_000_000
    """Most tokens of live turns' contexts, for their own drafts: 12 bytes each, allocated as needed."""
    context_window: int = 8192
    """Last tokens of a turn's context that its drafts use."""

    vocabulary: int = 0
    """Tokens that the policy knows, from 0 on: turns with others are refused; 0 where that is not known."""
    threads: int = 0
    """Threads that draft a batch of 64 rows or more; 0 takes one a core, at most 8, as many
    as the drafts of 256 rows keep busy."""

    def __post_init__(self) -> None:
        for token in self.end_tokens:
            if int(token) != token or not 0 <= token <= _MOST_TOKEN:
                raise ValueError(f"ForestConfig.end_tokens must be token ids from 0 to {_MOST_TOKEN}, got {token!r}")
        object.__setattr__(self, "end_tokens", frozenset(int(token) for token in self.end_tokens))
        for name, least in (
            ("rollouts_per_state", 1),
            ("max_tokens", 1024),
            ("max_cold_tokens", 0),
            ("max_context_tokens", 1024),
            ("context_window", 0),
            ("vocabulary", 0),
            ("threads", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"ForestConfig.{name} must be a whole number, got {value!r}")
            if not least <= value <= _MOST_TOKENS:
                raise ValueError(f"ForestConfig.{name} must be from {least} to {_MOST_TOKENS}, got {value}")
        if self.threads > MOST_THREADS:
            raise ValueError(f"ForestConfig.threads must be at most {MOST_THREADS}, got {self.threads}")

    @property
    def draft_threads(self) -> int:
        """Number of threads that draft."""
        return self.threads or min(8, os.cpu_count() or 1)
