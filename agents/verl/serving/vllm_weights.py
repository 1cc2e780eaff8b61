"""Both ends of the weights of ``rollout.name=vllm``: the trainer's, and verl's methods of a vLLM worker with
turntree's beside them.

On the CPU a worker loads weights differently. verl copies new weights into the
model's parameters; vLLM's linear layers on the CPU have none left, since they are
repacked and emptied when the model is loaded (vLLM 0.24 and 0.28,
``dispatch_cpu_unquantized_gemm``). vLLM's own way to load again in place repacks
them too, but needs all weights at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
import torch
import zmq
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from turntree.agents.engines.vllm.worker import WorkerExtension
from turntree.agents.errors import EngineLost
from turntree.agents.verl.serving.restarts import RestartedServer

SECONDS = 300
"""Time for a server to take a bucket of weights, half of what verl's trainers wait for each other."""


class BoundedSender(ServerAdapter):  # type: ignore[misc]
    """verl's weight sender, which waits for a dead server without an end (verl 0.9.1, ``BucketedWeightSender``).

    A server that takes no weights is ended, since it may have some of the new ones; Ray starts it again.
    """

    async def update_weights(self, *args: Any, **kwargs: Any) -> None:
        """As verl's.

        Raises:
            EngineLost: If the server takes no weights for ``SECONDS``.
        """
        context: Any = zmq.Context.instance()  # verl's sockets are made from it, and have its bounds
        try:
            for bound in (zmq.SNDTIMEO, zmq.RCVTIMEO):
                context.setsockopt(bound, int(1000 * SECONDS))
            await super().update_weights(*args, **kwargs)
        except zmq.Again as error:
            if self._ensure_server_handle():
                ray.kill(self.server_handle, no_restart=False)
            raise EngineLost(f"it has not taken a bucket of weights for {SECONDS} s") from error
        finally:
            for bound in (zmq.SNDTIMEO, zmq.RCVTIMEO):
                context.setsockopt(bound, -1)


class VllmWeightSender(RestartedServer, BoundedSender):  # type: ignore[misc]
    """verl's ``BaseRollout`` for vLLM; arguments are verl's."""

    async def server(self) -> Any:
        """See ``RestartedServer``."""
        return self.server_handle if self._ensure_server_handle() else None


class DraftingWorkerExtension(vLLMColocateWorkerExtension, WorkerExtension):
    """On an accelerator: verl's methods unchanged."""


class CpuWorkerExtension(DraftingWorkerExtension):
    """On the CPU: weights are loaded again by vLLM."""

    reload_weights: Callable[..., None]
    """The worker's own method."""

    def update_weights_from_ipc(
        self, peft_config: dict[str, Any] | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        """Receive all weights, then load them in place.

        Args:
            peft_config: Must be ``None``: adapters are merged before they come here.
            use_shm: Whether they come through shared memory; on the CPU they do.

        Raises:
            ValueError: If an adapter is to be loaded.
        """
        if peft_config is not None:
            raise ValueError("vLLM on the CPU takes no adapters from verl; set actor_rollout_ref.model.lora.merge=True")
        weights: list[tuple[str, torch.Tensor]] = []

        def keep(bucket: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            # Copies, since the next bucket reuses the memory.
            weights.extend((name, tensor.clone()) for name, tensor in bucket)

        receiver = BucketedWeightReceiver(
            zmq_handle=self._get_zmq_handle(), device=torch.device("cpu"), use_shm=use_shm
        )
        receiver.receive_weights(on_bucket_received=keep)
        self.reload_weights(weights_iterator=iter(weights))
