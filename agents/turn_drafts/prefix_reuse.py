"""Reuse of stored turns over any engine, as one object: ``PrefixReuse``."""

from __future__ import annotations

from turntree.agents.engines.protocol import ScoringEngine
from turntree.agents.turn_drafts.config import ReuseConfig, ReuseMode
from turntree.agents.turn_drafts.pipeline import DraftedTurns, Remember
from turntree.agents.turn_drafts.stored import ReuseStats, StoredTurns
from turntree.spec_tree.rules.ledger import Ledger


class PrefixReuse(DraftedTurns):
    """An ``Engine`` around a ``ScoringEngine`` that begins a turn with a stored one of the same state.

    Call ``close_step`` after every update of the policy. The modes are described in ``stored``.

    Args:
        max_context: Most tokens of prompt and response together that the engine takes; ``None`` is no bound.
        remember: Called with each turn of which a part was reused, as the engine itself saw only the rest of
            it: a forest's ``insert``.
        seed: For turns that bring none; ``None`` is fresh entropy.
    """

    def __init__(
        self,
        engine: ScoringEngine,
        config: ReuseConfig,
        *,
        vocabulary: int,
        max_context: int | None = None,
        remember: Remember | None = None,
        seed: int | None = None,
    ) -> None:
        self.config = config
        self.stored = StoredTurns(config, vocabulary=vocabulary, max_context=max_context, seed=seed)
        sources = () if config.mode is ReuseMode.NONE else (self.stored,)
        super().__init__(engine, sources, remember=remember)

    @property
    def ledger(self) -> Ledger:
        """The stored turns."""
        return self.stored.ledger

    @property
    def stats(self) -> ReuseStats:
        """Counters since creation."""
        return self.stored.stats
