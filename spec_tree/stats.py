from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestStats:
    """Contents and counters of a ``SpecForest``."""

    states: int  #: dialogue states held
    rollouts: int  #: finished turns held, with and without an index
    live: int  #: turns that have begun and not ended
    tokens: int  #: tokens of finished turns with an index
    cold_tokens: int  #: tokens of finished turns without an index
    bytes: int  #: memory of the token log, its index and its keys, bytes
    cold_bytes: int  #: memory of the turns without an index, bytes
    context_bytes: int  #: memory of live turns' contexts, bytes
    live_bytes: int  #: memory of live turns' drafts and of the learnt weights, bytes
    drafted: int  #: draft nodes (proposed tokens) returned since the start
    accepted: int  #: draft nodes whose token the policy sampled, since the start
    committed: int  #: sampled tokens passed to ``commit`` since the start
    evicted_rollouts: int  #: finished turns dropped for their state's quota or for lack of memory
    evicted_states: int  #: dialogue states dropped for lack of memory
