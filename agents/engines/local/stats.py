"""Counters of the local engine."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Counters since the engine started. Precomputed requests count only in passes and
    time. Subtract two copies to get an interval."""

    forward_passes: int = 0
    """Forward passes of the model."""
    seconds: float = 0.0
    """Wall time spent in steps: drafting, the model, sampling, book-keeping."""
    model_seconds: float = 0.0
    """The model's part of ``seconds``."""
    draft_seconds: float = 0.0
    """The store's part of ``seconds``."""
    draft_idle_seconds: float = 0.0
    """The part of ``seconds`` in which the device waited for drafts."""
    requests: int = 0
    """Requests that finished."""
    prompt_tokens: int = 0
    """Tokens of their prompts."""
    cached_tokens: int = 0
    """Prompt tokens whose keys and values were reused."""
    tokens: int = 0
    """Tokens sampled."""
    scored: int = 0
    """Positions of given tokens that were scored."""
    verify_steps: int = 0
    """Sum over requests of the forward passes in which they sampled."""
    drafted: int = 0
    """Draft tokens verified."""
    accepted: int = 0
    """Draft tokens that the policy itself sampled."""

    @property
    def tokens_per_forward_pass(self) -> float:
        """Tokens emitted per forward pass of a request; 1.0 without speculation."""
        return self.tokens / self.verify_steps if self.verify_steps else 0.0

    def copy(self) -> EngineStats:
        """A copy that no longer changes."""
        return EngineStats(**{f.name: getattr(self, f.name) for f in fields(self)})

    def __sub__(self, earlier: EngineStats) -> EngineStats:
        return EngineStats(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)})

    def to_dict(self) -> dict[str, float]:
        """Counters and ``tokens_per_forward_pass`` as JSON values."""
        values: dict[str, float] = {f.name: getattr(self, f.name) for f in fields(self)}
        return values | {"tokens_per_forward_pass": self.tokens_per_forward_pass}
