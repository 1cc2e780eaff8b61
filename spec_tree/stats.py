"""Contents and counts of a forest."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestStats:
    """Contents and counts of a forest."""

    states: int
    """Dialogue states held."""
    rollouts: int
    """Finished turns held, with and without index."""
    live: int
    """Turns that have begun and not ended."""
    tokens: int
    """Tokens of finished turns with an index."""
    cold_tokens: int
    """Tokens of finished turns without an index."""
    bytes: int
    """Memory of the token log, its index and its keys, in bytes."""
    cold_bytes: int
    """Memory of the turns without an index, in bytes."""
    context_bytes: int
    """Memory of live turns' contexts, in bytes."""
    live_bytes: int
    """Memory of the live turns' drafts and of the learnt weights, in bytes."""
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
