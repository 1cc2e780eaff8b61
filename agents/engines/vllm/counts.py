"""What the drafter counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True, kw_only=True)
class DrafterCounts:
    """Counters since the engine started."""

    steps: int = 0
    """Steps after which vLLM asked for drafts."""
    rows: int = 0
    """Requests that sampled, summed over steps."""
    tokens: int = 0
    """Tokens that they sampled."""
    drafted: int = 0
    """Draft tokens verified."""
    accepted: int = 0
    """Draft tokens that the policy itself sampled."""
    seconds: float = 0.0
    """Wall time of the drafter."""

    def to_dict(self) -> dict[str, float]:
        """As JSON values."""
        return asdict(self)
