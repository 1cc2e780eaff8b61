"""Weight transfer of ``rollout.name=vllm``: the trainer's sender and the vLLM worker's receiver.

verl copies new weights into the model's parameters. On the CPU this does not work: when vLLM 0.24 or 0.28 loads a
model, it repacks the parameters of linear layers and empties the originals (``dispatch_cpu_unquantized_gemm``). vLLM's
own in-place reload repacks new weights too, but needs all weights at once.
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

SECONDS = 300  #: time limit for a server to receive one bucket; half of verl's timeout between trainer processes


class BoundedSender(ServerAdapter):  # type: ignore[misc]
    """verl's weight sender with a time limit; verl 0.9.1 waits for a dead server forever.

    A server that stops receiving is killed, because it may have loaded only some of the new weights; Ray restarts it.
    """

    async def update_weights(self, *args: Any, **kwargs: Any) -> None:
        context: Any = zmq.Context.instance()  # verl creates its sockets from this context, with these time limits
        try:
            for bound in (zmq.SNDTIMEO, zmq.RCVTIMEO):
                context.setsockopt(bound, int(1000 * SECONDS))
            await super().update_weights(*args, **kwargs)
        except zmq.Again as error:
            if self._ensure_server_handle():
                ray.kill(self.server_handle, no_restart=False)
            raise EngineLost(f"the server has not taken a bucket of weights for {SECONDS} s") from error
        finally:
            for bound in (zmq.SNDTIMEO, zmq.RCVTIMEO):
                context.setsockopt(bound, -1)


class VllmWeightSender(RestartedServer, BoundedSender):  # type: ignore[misc]
    async def server(self) -> Any:
        return self.server_handle if self._ensure_server_handle() else None


class DraftingWorkerExtension(vLLMColocateWorkerExtension, WorkerExtension):
    """vLLM's worker extension on an accelerator: verl's methods and turntree's, unchanged."""


class CpuWorkerExtension(DraftingWorkerExtension):
    reload_weights: Callable[..., None]

    def update_weights_from_ipc(
        self, peft_config: dict[str, Any] | None = None, base_sync_done: bool = False, use_shm: bool = False
    ) -> None:
        if peft_config is not None:
            raise ValueError("vLLM on the CPU loads no adapters from verl; set actor_rollout_ref.model.lora.merge=True")
        weights: list[tuple[str, torch.Tensor]] = []

        def keep(bucket: list[tuple[str, torch.Tensor]], is_last: bool) -> None:
            # Clone: the next bucket reuses this memory.
            weights.extend((name, tensor.clone()) for name, tensor in bucket)

        receiver = BucketedWeightReceiver(
            zmq_handle=self._get_zmq_handle(), device=torch.device("cpu"), use_shm=use_shm
        )
        receiver.receive_weights(on_bucket_received=keep)
        self.reload_weights(weights_iterator=iter(weights))
