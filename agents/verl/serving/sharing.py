"""An engine whose finished turns are recorded for the other replicas."""

from __future__ import annotations

from turntree.agents.engines.protocol import Completion, Engine, FinishReason, TurnRequest
from turntree.spec_tree.exchange.exchange import SharedTurns


class SharingEngine:
    """Passes turns on, and records those that ended regularly.

    Args:
        engine: The engine that samples.
        shared: The store's membership in the exchange.
    """

    def __init__(self, engine: Engine, shared: SharedTurns) -> None:
        self._engine = engine
        self._shared = shared

    async def generate(self, request: TurnRequest) -> Completion:
        """The engine's own turn."""
        completion = await self._engine.generate(request)
        if request.state is not None and completion.finish_reason is not FinishReason.ABORT:
            self._shared.note(request.state, completion.token_ids)
        return completion
