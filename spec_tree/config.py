"""The settings of a forest."""

from __future__ import annotations

import os
from dataclasses import dataclass

_MOST_TOKENS = 2**30
MOST_THREADS = 16
"""Threads that draft a batch at most."""
_MOST_TOKEN = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestConfig:
    """How much a ``SpecForest`` keeps."""

    end_tokens: frozenset[int] = frozenset()
    """Tokens that end a turn; nothing is drafted after one."""
    rollouts_per_state: int = 32
    """Finished turns kept of each dialogue state; the oldest go first."""
    max_tokens: int = 4_000_000
    """Positions of the token log, the indexed part: about 24 bytes each, taken as they are needed."""
    max_cold_tokens: int = 40_000_000
    """Tokens kept without an index, 2 to 4 bytes each; the least recently used states go first."""
    max_context_tokens: int = 1_000_000
    """Tokens of what live turns were asked, for their own drafts: 12 bytes each, taken as they are needed."""
    context_window: int = 8192
    """Tokens at the end of what a turn was asked that its drafts look at."""

    threads: int = 0
    """Threads that draft a batch of 64 rows or more; 0 takes one a core, at most 4."""

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
        """How many threads draft."""
        return self.threads or min(4, os.cpu_count() or 1)
