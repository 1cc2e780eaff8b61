"""Route one process's turns to the replicas: each dialogue goes to the replica whose draft store has its task.

A lost replica gets no turns until it has the trainer's weights and serves again. The player retries failed episodes;
this module only chooses another replica. If all replicas are lost, turns wait until a replica returns.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from turntree.agents.engines.protocol import Completion, Engine, TurnRequest
from turntree.agents.engines.routing import TaskRoutes, preference, route_key
from turntree.agents.errors import EngineLost
from turntree.spec_tree import DialogueState

logger = logging.getLogger(__name__)


class ReplicaTurns:
    """One process's view of the engine replicas.

    Args:
        engines: The engine of each replica, by the replica's rank.
        serving: Returns once the replica of a rank serves; raises if the replica cannot be reached.
        patience: Seconds that a turn waits for a replica to return if all replicas are lost.
        look_seconds: Seconds between two calls of ``serving`` for a lost replica.
    """

    def __init__(
        self,
        engines: Mapping[int, Engine],
        serving: Callable[[int], Awaitable[None]],
        *,
        patience: float = 600.0,
        look_seconds: float = 1.0,
    ) -> None:
        self._engines = dict(engines)
        self._serving = serving
        self._patience = patience
        self._look_seconds = look_seconds
        self.routes = TaskRoutes(list(self._engines))
        self._returns: dict[int, asyncio.Task[None]] = {}  # per lost replica, a task that waits for its return
        self.lost = 0  # times that a replica was lost

    def dialogue(self) -> Engine:
        return _Dialogue(self)

    def owner(self, state: DialogueState) -> int:
        """Return the rank of a task's owner replica: the first choice, unless this replica is lost or full."""
        return preference(route_key(state), self._engines)[0]

    async def precompute(self, state: DialogueState, request: TurnRequest) -> Completion:
        """Sample a turn for a later step at the task's owner replica, which will most likely get the task then."""
        return await self._engines[self.owner(state)].generate(request)

    async def choose(self, key: str) -> int:
        if not self.routes.alive:
            done, _ = await asyncio.wait(
                list(self._returns.values()), timeout=self._patience, return_when=asyncio.FIRST_COMPLETED
            )
            if not done and not self.routes.alive:
                raise EngineLost(f"all engine replicas are lost, and none returned within {self._patience:g} s")
        return self.routes.acquire(key)

    async def generate(self, rank: int, key: str, request: TurnRequest) -> Completion:
        try:
            return await self._engines[rank].generate(request)
        except EngineLost:
            self._lose(rank)
            raise
        finally:
            self.routes.release(key, rank)

    def _lose(self, rank: int) -> None:
        if rank in self.routes.lost:
            return
        self.routes.lose(rank)
        self.lost += 1
        logger.warning("engine replica %d is lost; %d replicas remain", rank, len(self.routes.alive))
        self._returns[rank] = asyncio.create_task(self._await_return(rank))

    async def _await_return(self, rank: int) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                await self._serving(rank)
            except Exception as error:  # whatever the cause, the next check may succeed
                logger.debug("engine replica %d cannot be reached: %s", rank, error)
                continue
            del self._returns[rank]
            self.routes.restore(rank)
            logger.warning("engine replica %d is back", rank)
            return


class _Dialogue:  # an ``Engine`` for one episode, which stays at one replica as long as possible
    def __init__(self, replicas: ReplicaTurns) -> None:
        self._replicas = replicas
        self._rank: int | None = None

    async def generate(self, request: TurnRequest) -> Completion:
        state = request.state or DialogueState.from_tokens(request.prompt_ids)
        if request.precomputed_for:
            return await self._replicas.precompute(state, request)
        key = route_key(state)
        routes = self._replicas.routes
        if self._rank is None or not routes.hold(key, self._rank):
            self._rank = await self._replicas.choose(key)
        return await self._replicas.generate(self._rank, key, request)
