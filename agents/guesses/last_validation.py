"""Validations that replay one another: the same noise each time, and each turn begun with the last one's tokens.

The last turn that a seed sampled is the draft of the next one with that seed, so
that a turn takes one pass until the update changed a token. A draft changes
nothing else: the turn is what plain decoding with its seed samples.

Invariant: what is held here comes from validations alone and goes into validations
alone. The policy is never trained on it, so the turns are unbiased.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.protocol import Completion, Engine, FinishReason, TurnRequest
from turntree.spec_tree.rules.level import Level


class CoupledTurns:
    """An ``Engine`` for the turns of validations; see the module's docstring.

    Args:
        engine: Samples the turns; its noise is a function of the seed.
        max_tokens: Most tokens held.
    """

    def __init__(self, engine: Engine, *, max_tokens: int) -> None:
        self._engine = engine
        self._room = max_tokens
        self._last: dict[int, NDArray[np.int32]] = {}

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn; one without a seed goes to the engine as it is."""
        seed = request.sampling.seed
        if seed is None:
            return await self._engine.generate(request)
        last = self._last.get(seed)
        if last is None:
            completion = await self._engine.generate(request)
        else:
            draft = last[: request.sampling.max_tokens].tolist()
            completion = await self._engine.generate(replace(request, draft=draft))
            completion = replace(completion, levels=str(Level.B) * len(completion.token_ids))
        if completion.finish_reason is not FinishReason.ABORT:
            self._keep(seed, completion.token_ids)
        return completion

    def _keep(self, seed: int, tokens: Sequence[int]) -> None:
        # A full store keeps what it has: every validation asks for all turns in turn, so that dropping the oldest
        # ones would drop each just before it is asked for.
        self._room += len(self._last.pop(seed, ()))
        if len(tokens) <= self._room:
            self._room -= len(tokens)
            self._last[seed] = np.asarray(tokens, np.int32)
