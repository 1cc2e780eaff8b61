"""The weight side of the rollout backend ``rollout.name=turntree``: sends the trainer's weights to the server.

It lives in the trainer's process. Tensors are sent through Ray's object store in
buckets, one at a time, so that the store never holds the whole model.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.utils import ensure_async_iterator

from turntree.agents.verl.config.sections import ConfigError
from turntree.agents.verl.names import server_name
from turntree.agents.verl.serving.restarts import RestartedServer

Weights = Iterable[tuple[str, torch.Tensor]] | AsyncIterable[tuple[str, torch.Tensor]]
"""Names and tensors."""


class WeightSender(RestartedServer, BaseRollout):
    """verl's ``BaseRollout`` for the turntree engine.

    Args:
        replica_rank: Rank of the replica to feed; -1 takes the trainer's rank.
    """

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        # A replica is one device wide, so every trainer rank has its own replica.
        rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self.replica_rank = rank
        self._bucket_bytes = self.config.checkpoint_engine.update_weights_bucket_megabytes << 20

    async def server(self) -> Any:
        """See ``RestartedServer``."""
        return ray.get_actor(server_name(self.replica_rank))

    async def resume(self, tags: list[str]) -> None:
        """Wake the server."""
        await (await self.server()).wake_up.remote(tags=tags)

    async def release(self) -> None:
        """Let the server drop its keys and values."""
        await (await self.server()).sleep.remote()

    async def update_weights(
        self,
        weights: Any,
        wire_format: str = "named_tensors",
        *,
        global_steps: int | None = None,
        peft_config: Any = None,
        **kwargs: Any,
    ) -> None:
        """Send every tensor of ``weights``, then the step that they belong to.

        Args:
            weights: Yields (name, tensor), full tensors under Hugging Face names; an asynchronous generator where they
                come from another process.
            wire_format: Must be ``named_tensors``.
            global_steps: Updates that the trainer has made; ``RESEND`` repeats the last call's.
            peft_config: Must be ``None``: adapters are merged before they come here.

        Raises:
            ConfigError: If the weights come as deltas or as an adapter.
        """
        if wire_format != "named_tensors":
            raise ConfigError(
                f"the turntree engine takes whole tensors, not {wire_format!r}; use checkpoint_engine.backend=naive"
            )
        if peft_config is not None:
            raise ConfigError("the turntree engine takes no adapters; set actor_rollout_ref.model.lora.merge=True")
        await super().update_weights(weights, global_steps=global_steps)

    async def send(self, server: Any, life: str, weights: Any, **kwargs: Any) -> None:
        """See ``RestartedServer``."""
        async for bucket in buckets_of(weights, self._bucket_bytes):
            await server.update_weights.remote(bucket, life)


async def buckets_of(weights: Weights, bucket_bytes: int) -> AsyncIterator[dict[str, torch.Tensor]]:
    """Copies of the weights on the CPU, in their order: each bucket ends with the tensor that fills it."""
    bucket: dict[str, torch.Tensor] = {}
    size = 0
    async for name, tensor in ensure_async_iterator(weights):
        bucket[name] = tensor.detach().to("cpu", copy=True)
        size += tensor.numel() * tensor.element_size()
        if size >= bucket_bytes:
            yield bucket
            bucket, size = {}, 0
    if bucket:
        yield bucket
