"""An engine that precomputes turns in its idle slots, and begins the turns of their step with them."""

from typing import Any

from turntree.agents.turn_drafts.config import RunAheadConfig
from turntree.agents.turn_drafts.idle_slots import IdleSlots
from turntree.agents.turn_drafts.pipeline import DraftedTurns
from turntree.agents.turn_drafts.precomputed import PrecomputedTurns


class RunAhead(DraftedTurns):
    """The pipeline over ``engine`` with precomputed turns as its only source, which answers for all else."""

    def __init__(self, engine: Any, *, slots: IdleSlots | None = None, **settings: Any) -> None:
        self.ahead = PrecomputedTurns(engine, RunAheadConfig(enabled=True, **settings), slots=slots)
        super().__init__(engine, [self.ahead], slots=slots)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ahead, name)
