"""Limits on the length of an episode.

The environment enforces the limits on turns, tool calls, seconds and errors. The rollout enforces the limits counted
in tokens, because an environment sees no tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one episode; ``None`` turns a limit off."""

    max_turns: int | None = 8  #: turns of the policy
    max_tool_calls: int | None = None  #: tool calls in the whole episode
    #: seconds since ``reset``, including the policy's own time; a tool that is still running is abandoned
    max_seconds: float | None = None
    #: consecutive turns in which a tool call was malformed, or every call returned an error
    max_errors: int | None = None
    max_turn_tokens: int | None = 512  #: tokens that the policy samples in one turn
    #: tokens after the first prompt: sampled tokens and observations together (verl's response length)
    max_episode_tokens: int | None = None
    max_context_tokens: int | None = None  #: tokens of prompt and response together (the model's context length)

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if f.name == "max_seconds":
                if value is not None and not (isinstance(value, int | float) and value > 0):
                    raise ValueError(f"Limits.max_seconds must be a positive number or None, got {value!r}")
            elif value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"Limits.{f.name} must be a positive integer or None, got {value!r}")

    def within(self, other: Limits) -> Limits:
        """Return, for every field, the tighter of the two limits.

        >>> Limits(max_turns=8).within(Limits(max_turns=None, max_turn_tokens=64)).max_turn_tokens
        64
        """
        tightest = {}
        for f in fields(self):
            bounds = [b for b in (getattr(self, f.name), getattr(other, f.name)) if b is not None]
            tightest[f.name] = min(bounds, default=None)
        return Limits(**tightest)
