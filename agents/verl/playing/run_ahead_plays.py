"""Precomputation of whole episodes by one worker, each in an environment of its own.

A turn's prompt depends on the environment's earlier answers, so the precomputed
turns of a dialogue are useful as far as the environment answers the same again; a
turn is promoted by its exact prompt, however that was reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from turntree.agents.verl.playing.player import EpisodePlayer
from turntree.agents.verl.playing.replica_turns import ReplicaTurns
from turntree.agents.verl.serving.turn_pipe import TurnPipe

logger = logging.getLogger(__name__)


class AheadPlays:
    """Precomputes episodes of rows, at most as many at once as the engines have slots for it.

    Args:
        pipes: Connections to the replicas, by rank.
    """

    def __init__(
        self, player: EpisodePlayer, pipes: Mapping[int, TurnPipe], replicas: ReplicaTurns, *, slots: int
    ) -> None:
        self._player = player
        self._pipes = dict(pipes)
        self._replicas = replicas
        self._most = slots * len(pipes)
        self._plays: set[asyncio.Task[None]] = set()

    async def begin_step(self, step: int) -> None:
        """Training step ``step`` begins: nothing is precomputed for it any longer, and its turns can be promoted."""
        for play in self._plays:
            play.cancel()
        begun = await asyncio.gather(*(pipe.begin_step(step) for pipe in self._pipes.values()), return_exceptions=True)
        for error in begun:
            if isinstance(error, Exception):
                logger.warning("a rollout server was not told that step %d begins: %s", step, error)

    def start(self, rows: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any], *, size: int) -> None:
        """Begin to precompute ``size`` episodes of each row.

        Args:
            rows: Rows of the data set; ``global_steps`` is the step that they are for.
            sampling: Sampling parameters, as that step will request.
        """
        slots = asyncio.Semaphore(self._most)
        for row in rows:
            for session in range(size):
                self._keep(self._play({**row, "session_id": session}, sampling, slots))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._plays.add(task)
        task.add_done_callback(self._plays.discard)

    async def _play(self, row: Mapping[str, Any], sampling: Mapping[str, Any], slots: asyncio.Semaphore) -> None:
        async with slots:
            try:
                await self._player.play_ahead(sampling, row, self._replicas.dialogue())
            except Exception:
                logger.warning("an episode could not be precomputed", exc_info=True)
