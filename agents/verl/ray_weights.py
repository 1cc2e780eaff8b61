"""The checkpoint engine ``turntree`` of verl: the trainer's weights go to rollout replicas on devices of their own.

verl's others need an interconnect of accelerators; this one goes through Ray's object store. The trainer's first
process puts the weights there bucket by bucket and names them to the worker beside each replica, which passes them on
as weights of a trainer on its own device are passed (``WeightSender``). They stay in the store until the next update:
a replica that was started again gets them from there, as the trainer has newer ones by then.

One copy of the weights thus lies in the host's memory: ``ray_kwargs.ray_init.object_store_memory`` must hold two,
for the time of an update.
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

_PATIENCE = 1800.0
"""Seconds in which the trainer gathers its weights."""


@CheckpointEngineRegistry.register(ROLLOUT_NAME)
class RayWeights(CheckpointEngine):  # type: ignore[misc]
    """One end of it, in a process of the trainer or beside a replica; see the module's docstring.

    Args:
        bucket_size: Bytes of a bucket.
        is_master: verl's, for other backends.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._bucket_bytes = bucket_size
        self._receivers: Sequence[Any] = ()
        self._buckets: Sequence[Any] = ()
        self._named = asyncio.Event()

    def prepare(self) -> Any:
        """An update begins; returns the handle of this process."""
        self._named.clear()
        return ray.get_runtime_context().current_actor

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: Sequence[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Who tells whom: the first process of the trainer tells all replicas.

        Args:
            actor_wg_world_size: Processes of the trainer.
            rollout_world_size: Workers of the replicas.
            metadata: What ``prepare`` returned in each, the trainer's first.
        """
        receivers = [*metadata[actor_wg_world_size:]]
        trainers: list[Any] = [receivers, *([] for _ in range(actor_wg_world_size - 1))]
        return {"receivers": trainers}, {"receivers": [[] for _ in range(rollout_world_size)]}

    def init_process_group(self, receivers: Sequence[Any]) -> None:  # type: ignore[override]
        """Of this process: whom it tells."""
        self._receivers = receivers

    def finalize(self) -> None:
        """The update has ended."""

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Put the weights into the object store. The trainer's other processes gather each tensor together with this.

        Args:
            weights: Yields (name, tensor), full tensors under Hugging Face names.
            global_steps: Updates that the trainer has made.
        """
        if not self._receivers:
            for _ in weights:
                pass
            return
        self._buckets = [ray.put(bucket) async for bucket in buckets_of(weights, self._bucket_bytes)]
        told = (one.execute_checkpoint_engine.remote("take", [self._buckets]) for one in self._receivers)
        for outcome in await asyncio.gather(*told, return_exceptions=True):
            if isinstance(outcome, RayActorError):
                logger.warning("a rollout replica is gone and misses an update: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    def take(self, buckets: Sequence[Sequence[Any]]) -> None:
        """The weights that a replica is to get, as references to the store."""
        (self._buckets,) = buckets
        self._named.set()

    async def receive_weights(  # type: ignore[override] # verl's own are generators, too
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """The newest weights, once they are known; of a repeated update the last ones, at once.

        Args:
            global_steps: Updates that the trainer has made.

        Raises:
            TimeoutError: If the trainer does not name them in time.
        """
        try:
            if global_steps != RESEND or not self._buckets:
                await asyncio.wait_for(self._named.wait(), _PATIENCE)
        except TimeoutError:
            raise TimeoutError(f"the trainer named no weights within {_PATIENCE:g} s; see its own log") from None
        for bucket in self._buckets:
            for pair in (await bucket).items():
                yield pair
