"""verl's checkpoint engine ``turntree``: send the trainer's weights to replicas on other devices.

verl's own checkpoint engines need an interconnect between accelerators; this engine uses Ray's object store. The
trainer's first process puts the weights into the store in buckets. It passes references to the buckets to the worker
next to each replica, and the worker sends the weights to the replica (``WeightSender``). The weights stay in the store
until the next update, so that a restarted replica can get them.

The store holds one copy of the weights, and two copies during an update: ``ray_kwargs.ray_init.object_store_memory``
must have space for two.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import ray
import torch
from ray.exceptions import RayActorError
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from turntree.agents.verl.names import ROLLOUT_NAME
from turntree.agents.verl.serving.local import buckets_of
from turntree.agents.verl.serving.restarts import RESEND

logger = logging.getLogger(__name__)

_PATIENCE = 1800.0  #: seconds for the trainer to gather its weights


@CheckpointEngineRegistry.register(ROLLOUT_NAME)
class RayWeights(CheckpointEngine):  # type: ignore[misc]
    """One end of the transfer: a trainer process, or the worker next to a replica."""

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._bucket_bytes = bucket_size
        self._receivers: Sequence[Any] = ()
        self._buckets: Sequence[Any] = ()
        self._arrived = asyncio.Event()

    def prepare(self) -> Any:
        """Begin an update and return this process's actor handle."""
        self._arrived.clear()
        return ray.get_runtime_context().current_actor

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: Sequence[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Connect the trainer's first process to every replica.

        Args:
            metadata: The actor handle that ``prepare`` returned in each process, trainer processes first.
        """
        receivers = [*metadata[actor_wg_world_size:]]
        trainers: list[Any] = [receivers, *([] for _ in range(actor_wg_world_size - 1))]
        return {"receivers": trainers}, {"receivers": [[] for _ in range(rollout_world_size)]}

    def init_process_group(self, receivers: Sequence[Any]) -> None:  # type: ignore[override]
        self._receivers = receivers

    def finalize(self) -> None:
        """The update has ended."""

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Put (name, tensor) pairs into the object store and send references to the receivers."""
        if not self._receivers:
            for _ in weights:  # every trainer process must take part in gathering each tensor
                pass
            return
        self._buckets = [ray.put(bucket) async for bucket in buckets_of(weights, self._bucket_bytes)]
        sent = (receiver.execute_checkpoint_engine.remote("take", [self._buckets]) for receiver in self._receivers)
        for outcome in await asyncio.gather(*sent, return_exceptions=True):
            if isinstance(outcome, RayActorError):
                logger.warning("a rollout replica has ended and misses a weight update: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    def take(self, buckets: Sequence[Sequence[Any]]) -> None:
        """Receive references to the weights in the store."""
        (self._buckets,) = buckets
        self._arrived.set()

    async def receive_weights(  # type: ignore[override] # verl's are generators, too
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Wait for new weights and yield them; for a repeated update (``RESEND``), yield the last weights at once."""
        try:
            if global_steps != RESEND or not self._buckets:
                await asyncio.wait_for(self._arrived.wait(), _PATIENCE)
        except TimeoutError:
            raise TimeoutError(f"the trainer sent no weights within {_PATIENCE:g} s; see the trainer's log") from None
        for bucket in self._buckets:
            for pair in (await bucket).items():
                yield pair
