from typing import Any

from turntree.agents.turn_drafts.config import RunAheadConfig
from turntree.agents.turn_drafts.idle_slots import IdleSlots
from turntree.agents.turn_drafts.pipeline import DraftedTurns
from turntree.agents.turn_drafts.precomputed import PrecomputedTurns


class RunAheadTurns(DraftedTurns):
    """The pipeline over ``engine`` whose only draft source is its precomputed turns."""

    def __init__(self, engine: Any, *, slots: IdleSlots | None = None, **settings: Any) -> None:
        self.ahead = PrecomputedTurns(engine, RunAheadConfig(enabled=True, **settings), slots=slots)
        super().__init__(engine, [self.ahead], slots=slots)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ahead, name)
