"""The weight side of ``rollout.name=vllm``: verl's, for a server that Ray may have restarted.

Not covered: a server that dies while weights are on their way. verl's sender then waits without an end.
"""

from __future__ import annotations

import logging
from typing import Any

from ray.exceptions import RayActorError
from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

from turntree.agents.errors import EngineLost
from turntree.agents.verl.serving.restarts import RESEND

logger = logging.getLogger(__name__)


class VllmWeightSender(ServerAdapter):  # type: ignore[misc]
    """verl's ``BaseRollout`` for vLLM; arguments are verl's."""

    _global_steps: int | None = None

    # verl's own signature differs from that of its base class.
    async def update_weights(  # type: ignore[override]
        self, weights: Any, global_steps: int | None = None, **kwargs: Any
    ) -> None:
        """As verl's, once the server is there.

        Args:
            global_steps: Updates that the trainer has made; ``RESEND`` repeats the last call's.
        """
        if global_steps == RESEND:
            global_steps = self._global_steps
        self._global_steps = global_steps
        send: Any = super().update_weights
        if not self._ensure_server_handle():  # not the process of this replica that talks to the server
            await send(weights, global_steps=global_steps, **kwargs)
            return
        server: Any = self.server_handle
        try:
            life = await server.ready.remote()
            await send(weights, global_steps=None, **kwargs)
            if global_steps is not None:
                await server.set_global_steps.remote(global_steps, life)
        except (RayActorError, EngineLost) as error:
            logger.warning(
                "vLLM's replica %d was lost during an update; it has no weights until the next one: %s",
                self.replica_rank,
                error,
            )
            for _ in weights:  # the trainer's other processes gather each tensor together with this one
                pass
