"""Counters of what updates of the weights interrupted, and of what became of it."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True, kw_only=True)
class ResumeCounts:
    """Counters of one episode, or of many."""

    interruptions: int = 0
    """Turns that were aborted for an update of the weights."""
    reverified_turns: int = 0
    """Turns that were verified again by another policy than the one that sampled them."""
    offered: int = 0
    """Their tokens."""
    kept: int = 0
    """Of these, tokens that the new policy draws with the same noise."""
    dropped: int = 0
    """Tokens thrown away: those behind the first that was not kept, and the later turns of its episode."""
    passes_saved: int = 0
    """Forward passes less than plain decoding of the same tokens would take."""
    reverify_seconds: float = 0.0
    """Time in requests that judge."""
    rewinds: int = 0
    """Times that an episode went back to a turn before its last."""
    lost_turns: int = 0
    """Turns that were requested again, as the engine's process had ended."""
    stale_episodes: int = 0
    """Episodes with turns of an earlier policy, as their environment cannot be set back."""

    def add(self, other: ResumeCounts) -> None:
        """Add the counts of ``other``."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
