"""The broker: a Ray actor through which the replicas of a run share finished turns.

The loss of the broker is harmless: the broker holds only a bounded buffer of turns that some replicas have not fetched
yet. Ray restarts the broker, and meanwhile every replica drafts from its own store. A replica fetches only turns of the
tasks that may be routed to this replica, so traffic does not grow with the square of the number of replicas.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple
from uuid import uuid4
from weakref import WeakKeyDictionary

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError

from turntree.agents.engines.routing import preference, route_key
from turntree.agents.verl.config.sections import plain
from turntree.agents.verl.config.settings import EngineSettings, SharingSettings
from turntree.agents.verl.records.phases import note_phase
from turntree.spec_tree.sharing.turn_batch import TurnBatch
from turntree.spec_tree.sharing.turn_log import Cursor, News, TurnLog
from turntree.spec_tree.sharing.turn_sharing import SharingFailed, Swapped

BROKER_NAME = "turntree_broker"
_PATIENCE = 30.0  #: seconds that a replica waits for a swap: one call that sends and fetches turns
_CACHED_TASKS = 1 << 16  #: tasks whose owner replicas are cached


class BrokerStats(NamedTuple):
    turns: int  #: turns in the buffer now
    nbytes: int  #: bytes in the buffer now
    dropped: int  #: turns dropped from the full buffer
    received: int  #: bytes
    sent: int  #: bytes
    members: int  #: replicas that have called ``swap``


class TurnBroker:
    def __init__(self, settings: SharingSettings) -> None:
        self._settings = settings
        self._log = TurnLog(settings.max_bytes)  #: the buffer of turns
        self._members: tuple[int, ...] = ()
        self._owners: WeakKeyDictionary[TurnBatch, NDArray[np.int64]] = WeakKeyDictionary()
        self._owners_of_key = lru_cache(_CACHED_TASKS)(
            lambda key: preference(key, self._members)[: settings.replicas_per_task]
        )
        self._received = self._sent = 0

    def swap(self, rank: int, source: str, own: TurnBatch, first: int, cursor: Cursor | None) -> News:
        """Add a replica's turns; return other replicas' turns of the tasks that may be routed to this replica."""
        # ``source`` names the replica's process: a restarted replica has a new name. ``first`` is the number of turns
        # that the process sent before, ``cursor`` its position in the buffer.
        if rank not in self._members:
            # A new replica changes the routing order of all tasks.
            self._members = tuple(sorted({*self._members, rank}))
            self._owners.clear()
            self._owners_of_key.cache_clear()
        self._received += own.nbytes
        self._log.append(source, first, own.copied())
        filtered = 0 < self._settings.replicas_per_task < len(self._members)
        news = self._log.read(
            source,
            cursor,
            wanted=(lambda batch: (self._owners_of(batch) == rank).any(1)) if filtered else None,
            max_tokens=self._settings.max_tokens,
        )
        self._sent += sum(batch.nbytes for batch in news.batches)
        return news

    def _owners_of(self, batch: TurnBatch) -> NDArray[np.int64]:
        # Return the ranks of the replicas to which each turn's task may be routed, shape (turns, replicas_per_task).
        owners = self._owners.get(batch)
        if owners is None:
            tasks, index = batch.distinct()
            owners_of_task = [self._owners_of_key(route_key(task)) for task in tasks]
            owners = self._owners[batch] = np.array(owners_of_task, np.int64)[index]
        return owners

    def stats(self) -> BrokerStats:
        log = self._log
        return BrokerStats(log.held, log.nbytes, log.dropped, self._received, self._sent, len(self._members))


def start_broker(settings: SharingSettings) -> Any:
    """Start or find the broker of this Ray session. The broker lives as long as the returned handle."""
    actor: Any = ray.remote(TurnBroker)
    # Ray may restart the broker any number of times, because a run does not depend on the broker's data.
    return actor.options(name=BROKER_NAME, get_if_exists=True, num_cpus=0, max_restarts=-1).remote(settings)


def broker_runs() -> bool:
    try:
        ray.get_actor(BROKER_NAME)
    except ValueError:
        return False
    return True


class SharingReplica:
    """Mix-in for verl's replica classes that counts the training's replicas and joins their broker; list it first.

    verl passes each replica the workers of all replicas. Replicas of reward and teacher models are not counted.
    """

    config: Any
    replica_rank: int
    world_size: int
    is_reward_model: bool
    is_teacher_model: bool
    _replicas = 1
    _broker: Any = None

    async def init_hybrid(self, worker_group: Any) -> None:
        self._replicas = len(worker_group.workers) // self.world_size
        if self.replica_rank == 0:
            note_phase(f"starting the engine {self.config.name}, {self._replicas} replica(s)")
        await super().init_hybrid(worker_group)  # type: ignore[misc]

    async def init_standalone(self) -> None:
        if not (self.is_reward_model or self.is_teacher_model):
            self._replicas = self.config.nnodes * self.config.n_gpus_per_node // self.world_size
            if self.replica_rank == 0:
                note_phase(f"starting the engine {self.config.name}, {self._replicas} replica(s) on their own devices")
        await super().init_standalone()  # type: ignore[misc]

    def join_broker(self) -> SharingSettings | None:
        """Start or find the broker; return ``None`` if the replica is alone or sharing is off."""
        if self._replicas == 1:
            return None
        sharing = EngineSettings.parse(plain(self.config.engine_kwargs.get("turntree"))).sharing
        if sharing is not None:
            self._broker = start_broker(sharing)  # the actor lives as long as this reference
        return sharing


class BrokerClient:
    """A replica's connection to the broker, from any process of the Ray session."""

    def __init__(self, rank: int, *, patience: float = _PATIENCE) -> None:
        self._rank = rank
        self._source = f"{rank}/{uuid4().hex}"
        self._patience = patience
        self._cursor: Cursor | None = None

    def swap(self, own: TurnBatch, first: int) -> Swapped:
        """See ``TurnSharing.swap``. This call blocks; do not make it on an event loop's thread."""
        try:
            broker = ray.get_actor(BROKER_NAME)
            call: Any = broker.swap.remote(self._rank, self._source, own, first, self._cursor)
            news: News = ray.get(call, timeout=self._patience)
        except (RayError, ValueError) as error:
            raise SharingFailed(f"the broker cannot be reached: {type(error).__name__}: {error}") from error
        self._cursor = news.cursor
        return Swapped(news.batches, news.missed)
