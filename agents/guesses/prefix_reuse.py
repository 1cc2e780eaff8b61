"""Reuse of stored turns over any engine, as one object: ``PrefixReuse``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turntree.agents.engines.protocol import Sampling, ScoringEngine, TurnRequest, derive_seed
from turntree.agents.guesses.config import ReuseConfig, ReuseMode
from turntree.agents.guesses.pipeline import GuessedTurns, Remember
from turntree.agents.guesses.source import Drawn
from turntree.agents.guesses.stored import ReuseStats, StoredTurns
from turntree.spec_tree.rules.ledger import Ledger


class PrefixReuse(GuessedTurns):
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
        self._reuses = config.mode is not ReuseMode.NONE
        super().__init__(engine, (self.stored,) if self._reuses else (), remember=remember)

    @property
    def ledger(self) -> Ledger:
        """The stored turns."""
        return self.stored.ledger

    @property
    def stats(self) -> ReuseStats:
        """Counters since creation."""
        return self.stored.stats

    async def sample_ahead(self, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        """Sample a turn for a later step and return nothing: reusing it then is level B.

        Args:
            prompt_ids: Token ids, shape (prompt,).
            sampling: Sampling parameters, as the later step will request.
        """
        if not self._reuses:
            return
        request = self.stored.wanted(TurnRequest(tuple(prompt_ids), sampling))
        assert request.sampling.seed is not None
        # The running step may request the same seed, and the policy be trained on what that noise samples.
        seed = derive_seed(request.sampling.seed, 5)
        request = replace(request, sampling=replace(request.sampling, seed=seed))
        completion = await self.engine.generate(request)
        self.stored.store(Drawn(request=request, guess=None, completion=completion, seed=seed), emitted=False)
