"""Turns whose engine dies under them, requested once more.

A turn is a function of the weights, its prompt and its seed, and what it was verified again from is kept here, so
nothing is lost with the process that sampled it: the router names another engine, or waits for the same one to come
back.
"""

from __future__ import annotations

import logging

from turntree.agents.engines.protocol import Completion, Engine, TurnRequest
from turntree.agents.errors import EngineLost
from turntree.agents.resuming.resume_counts import ResumeCounts

logger = logging.getLogger(__name__)

ATTEMPTS = 2
"""Most times that a turn is requested: one that kills its engine is not to kill all others."""


class LostTurns:
    """An ``Engine`` whose turns outlive a process.

    Args:
        engine: Its seeds decide its turns, also in another process.
        counts: Where lost turns are counted.
    """

    def __init__(self, engine: Engine, counts: ResumeCounts) -> None:
        self._engine = engine
        self._counts = counts

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn.

        Raises:
            EngineLost: If its engine was lost every time.
        """
        for _ in range(ATTEMPTS - 1):
            try:
                return await self._engine.generate(request)
            except EngineLost as error:
                self._counts.lost_turns += 1
                logger.info("a turn is requested again: %s", error)  # the loss of its replica is a warning, once
        return await self._engine.generate(request)
