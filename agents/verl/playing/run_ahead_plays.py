"""Precomputation of whole episodes by one worker, each in an environment of its own.

A turn's prompt depends on the environment's earlier answers, so the precomputed
turns of a dialogue are useful as far as the environment answers the same again; a
turn is promoted by its exact prompt, however that was reached.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from turntree.agents.engines.protocol import Completion, FinishReason, TurnRequest
from turntree.agents.engines.routing import preference, route_key
from turntree.agents.verl.playing.player import EpisodePlayer
from turntree.agents.verl.serving.turn_pipe import TurnPipe
from turntree.spec_tree import DialogueState

logger = logging.getLogger(__name__)


class AheadPlays:
    """Precomputes episodes of rows, at most as many at once as the engines have slots for it.

    Args:
        pipes: Connections to the replicas, by rank.
    """

    def __init__(self, player: EpisodePlayer, pipes: Mapping[int, TurnPipe], *, slots: int) -> None:
        self._player = player
        self._pipes = dict(pipes)
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
        self._keep(self._announce(rows))
        slots = asyncio.Semaphore(self._most)
        for row in rows:
            for session in range(size):
                self._keep(self._play({**row, "session_id": session}, sampling, slots))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._plays.add(task)
        task.add_done_callback(self._plays.discard)

    async def _announce(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Let the stores prepare for the first turns of ``rows``, including those that are not precomputed."""
        states: dict[int, list[DialogueState]] = defaultdict(list)
        for row in rows:
            await asyncio.sleep(0)
            try:
                state = self._player.first_state(row)
            except Exception:  # an environment that fails does so again in its own episode, which reports it
                logger.debug("a row could not be announced to the stores", exc_info=True)
                continue
            states[_home(state, self._pipes)].append(state)
        calls = (self._pipes[rank].announce(some) for rank, some in states.items())
        await asyncio.gather(*calls, return_exceptions=True)  # a lost server has nothing to prepare

    async def _play(self, row: Mapping[str, Any], sampling: Mapping[str, Any], slots: asyncio.Semaphore) -> None:
        async with slots:
            engine = _AheadPipes(self._pipes, int(row["global_steps"]))
            try:
                await self._player.play_ahead(sampling, row, engine)
            except Exception:
                logger.warning("an episode could not be precomputed", exc_info=True)


class _AheadPipes:
    """The engine of one precomputed episode; cancels it when a turn is aborted.

    A turn is sampled at the home of its task, where its step will most likely request it.
    """

    def __init__(self, pipes: Mapping[int, TurnPipe], step: int) -> None:
        self._pipes = pipes
        self._step = step

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn for a later step."""
        pipe = self._pipes[_home(request.state or DialogueState.from_tokens(request.prompt_ids), self._pipes)]
        turn = await pipe.generate(replace(request, ahead_for=self._step))
        if turn.finish_reason is FinishReason.ABORT:
            raise asyncio.CancelledError(f"nothing more is precomputed for step {self._step}")
        return turn


def _home(state: DialogueState, pipes: Mapping[int, TurnPipe]) -> int:
    """Rank of the replica to which all turns of a task go."""
    rank: int = preference(route_key(state), list(pipes))[0]
    return rank
