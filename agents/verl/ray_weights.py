"""verl checkpoint engine ``turntree``: send weights to rollout replicas on separate devices through Ray's object store.

verl's other checkpoint engines need an interconnect between accelerators. Here the trainer's first process puts the
weights into the object store, bucket by bucket, and sends references to a worker next to each replica. That worker
passes the weights to its replica's server with ``WeightSender``, as in colocated training. The weights stay in the
store until the next update, so that a restarted replica can get them although the trainer already has newer weights.

So the store holds one copy of the weights, and two during an update: set
``ray_kwargs.ray_init.object_store_memory`` to at least twice the size of the weights.
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

_TIMEOUT_SECONDS = 1800.0
"""Seconds to wait until the trainer has gathered its weights."""


@CheckpointEngineRegistry.register(ROLLOUT_NAME)
class RayWeights(CheckpointEngine):  # type: ignore[misc]
    """One end of the weight transfer, in a trainer process or in the worker next to a replica.

    Args:
        bucket_size: Bytes per bucket.
        is_master: Unused; verl passes it to every backend.
    """

    def __init__(self, bucket_size: int, is_master: bool = False) -> None:
        self._bucket_bytes = bucket_size
        self._receivers: Sequence[Any] = ()
        self._buckets: Sequence[Any] = ()
        self._received = asyncio.Event()

    def prepare(self) -> Any:
        """Begin an update; return the Ray handle of this process."""
        self._received.clear()
        return ray.get_runtime_context().current_actor

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: Sequence[Any]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Choose senders and receivers: the trainer's first process sends to all replicas.

        Args:
            actor_wg_world_size: Number of trainer processes.
            rollout_world_size: Number of replica workers.
            metadata: Results of ``prepare``, first from the trainer processes, then from the replica workers.
        """
        receivers = [*metadata[actor_wg_world_size:]]
        trainers: list[Any] = [receivers, *([] for _ in range(actor_wg_world_size - 1))]
        return {"receivers": trainers}, {"receivers": [[] for _ in range(rollout_world_size)]}

    def init_process_group(self, receivers: Sequence[Any]) -> None:  # type: ignore[override]
        """Set the handles that this process sends to."""
        self._receivers = receivers

    def finalize(self) -> None:
        """End an update."""

    async def send_weights(self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None) -> None:
        """Put the weights into the object store. The trainer's other processes only help to gather each tensor.

        Args:
            weights: Yields (name, tensor) pairs: full tensors under Hugging Face names.
            global_steps: Number of weight updates so far.
        """
        if not self._receivers:
            for _ in weights:
                pass
            return
        self._buckets = [ray.put(bucket) async for bucket in buckets_of(weights, self._bucket_bytes)]
        calls = (receiver.execute_checkpoint_engine.remote("take", [self._buckets]) for receiver in self._receivers)
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, RayActorError):
                logger.warning("a rollout replica died and missed a weight update: %s", outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    def take(self, buckets: Sequence[Sequence[Any]]) -> None:
        """Receive the references to the weights in the object store."""
        (self._buckets,) = buckets
        self._received.set()

    async def receive_weights(  # type: ignore[override] # verl's own are generators, too
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        """Wait for the new weights and yield them; if ``global_steps`` is ``RESEND``, yield the last ones at once.

        Args:
            global_steps: Number of weight updates so far, or ``RESEND``.

        Raises:
            TimeoutError: If the trainer sends no references in time.
        """
        try:
            if global_steps != RESEND or not self._buckets:
                await asyncio.wait_for(self._received.wait(), _TIMEOUT_SECONDS)
        except TimeoutError:
            raise TimeoutError(
                f"the trainer sent no weights within {_TIMEOUT_SECONDS:g} s; see the trainer's log"
            ) from None
        for bucket in self._buckets:
            for pair in (await bucket).items():
                yield pair
