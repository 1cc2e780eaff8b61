"""An engine whose finished turns are noted for the other replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from turntree.agents.engines.protocol import Completion, Engine, FinishReason, Sampling
from turntree.spec_tree import DialogueState
from turntree.spec_tree.exchange.exchange import SharedTurns


class SharingEngine:
    """Passes turns on, and notes those that ended by themselves.

    Args:
        engine: What samples.
        shared: The store's membership in the exchange.
    """

    def __init__(self, engine: Engine, shared: SharedTurns) -> None:
        self._engine = engine
        self._shared = shared

    async def generate(
        self,
        prompt_ids: tuple[int, ...],
        sampling: Sampling,
        *,
        state: DialogueState | None = None,
        draft: Sequence[int] = (),
        **options: Any,
    ) -> Completion:
        """As the engine's."""
        completion = await self._engine.generate(prompt_ids, sampling, state=state, draft=draft, **options)
        if state is not None and completion.finish_reason is not FinishReason.ABORT:
            self._shared.note(state, completion.token_ids)
        return completion
