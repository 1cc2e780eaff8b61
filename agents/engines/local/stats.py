from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True, kw_only=True)
class EngineStats:
    """Counters since the engine started; subtract two copies to get an interval.

    Precomputed requests (sampled before their caller needs them) count only in passes and time.
    """

    forward_passes: int = 0
    seconds: float = 0.0  #: wall time of steps: drafting, the model, sampling, book-keeping
    model_seconds: float = 0.0  #: part of ``seconds`` in the model
    draft_seconds: float = 0.0  #: part of ``seconds`` in the draft store
    draft_idle_seconds: float = 0.0  #: part of ``seconds`` in which the device waited for drafts
    requests: int = 0  #: finished requests
    prompt_tokens: int = 0
    cached_tokens: int = 0  #: prompt tokens whose keys and values were reused
    tokens: int = 0  #: sampled tokens
    scored: int = 0  #: positions of given tokens that were scored
    verify_steps: int = 0  #: forward passes in which a request sampled, summed over requests
    drafted: int = 0  #: draft tokens verified
    accepted: int = 0  #: draft tokens that the policy itself sampled

    @property
    def tokens_per_forward_pass(self) -> float:
        """Tokens per forward pass of a request; 1.0 without speculation."""
        return self.tokens / self.verify_steps if self.verify_steps else 0.0

    def copy(self) -> EngineStats:
        return EngineStats(**{f.name: getattr(self, f.name) for f in fields(self)})

    def __sub__(self, earlier: EngineStats) -> EngineStats:
        return EngineStats(**{f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)})

    def to_dict(self) -> dict[str, float]:
        values: dict[str, float] = {f.name: getattr(self, f.name) for f in fields(self)}
        return values | {"tokens_per_forward_pass": self.tokens_per_forward_pass}
