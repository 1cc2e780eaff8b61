from __future__ import annotations

from turntree.agents.engines.protocol import ScoringEngine
from turntree.agents.turn_drafts.config import ReuseConfig, ReuseMode
from turntree.agents.turn_drafts.pipeline import DraftedTurns, Remember
from turntree.agents.turn_drafts.stored import ReuseStats, StoredTurns
from turntree.spec_tree.rules.ledger import Ledger


class PrefixReuse(DraftedTurns):
    """An ``Engine`` that drafts from stored turns with the same prompt, around a ``ScoringEngine``.

    Call ``close_step`` after every weight update. ``StoredTurns`` describes the modes.

    Args:
        engine: Generates and scores turns.
        config: Mode and limits of the reuse.
        vocabulary: Size of the policy's vocabulary.
        max_context: Most tokens of prompt and response together that the engine takes; ``None`` for no limit.
        remember: Called with each turn verified by the ratio rule, for example ``SpecForest.insert``: the engine
            sampled only the rest of such a turn.
        seed: Seed for turns requested without a seed; ``None`` for fresh entropy.
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
