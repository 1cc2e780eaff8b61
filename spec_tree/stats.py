"""What a forest holds and has done."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestStats:
    """What a forest holds and has done."""

    states: int
    """Dialogue states held."""
    rollouts: int
    """Finished turns held."""
    live: int
    """Turns that have begun and not ended."""
    tokens: int
    """Tokens of the finished turns held."""
    contexts: int
    """Nodes of the context graph, all levels."""
    bytes: int
    """Approximate memory of the contexts and tokens, in bytes."""
    drafted: int
    """Draft nodes returned since the beginning."""
    accepted: int
    """Drafted nodes that were committed since the beginning."""
    committed: int
    """Tokens committed since the beginning."""
    evicted_rollouts: int
    """Finished turns dropped for the quota of their state or for memory."""
    evicted_states: int
    """Dialogue states dropped for memory."""
