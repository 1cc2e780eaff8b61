"""Limits on the length of an episode.

The environment enforces those of turns, tool calls, seconds and errors; the rollout
enforces the limits counted in tokens, which an environment cannot see.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one episode. ``None`` means no limit."""

    max_turns: int | None = 8
    """Most turns of the policy."""
    max_tool_calls: int | None = None
    """Most tool calls in the whole episode."""
    max_seconds: float | None = None
    """Time from ``reset`` on, the policy's own included; a tool still running then is abandoned."""
    max_errors: int | None = None
    """Most turns in a row in which a tool call could not be read, or every call was answered with an error."""
    max_turn_tokens: int | None = 512
    """Most tokens that the policy samples in one turn."""
    max_episode_tokens: int | None = None
    """Most tokens after the first prompt: sampled ones and observations together (verl's response length)."""
    max_context_tokens: int | None = None
    """Most tokens of prompt and response together (the model's context)."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "max_seconds":
                if value is not None and not (isinstance(value, int | float) and value > 0):
                    raise ValueError(f"Limits.max_seconds must be a positive number or None, got {value!r}")
            elif value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"Limits.{f.name} must be a positive integer or None, got {value!r}")

    def within(self, other: Limits) -> Limits:
        """These limits, each at most the other's.

        >>> Limits(max_turns=8).within(Limits(max_turns=None, max_turn_tokens=64)).max_turn_tokens
        64
        """
        tightest = {}
        for f in fields(self):
            bounds = [b for b in (getattr(self, f.name), getattr(other, f.name)) if b is not None]
            tightest[f.name] = min(bounds, default=None)
        return Limits(**tightest)
