"""Recover a rollout server, of any engine, that Ray has restarted because its process died.

A restarted server has loaded the run's initial weights instead of the policy's current weights. The server samples
nothing until it has the current weights. A trainer with one process is idle during rollouts, so it sends its weights
again. A trainer with several processes can only gather its weights in all processes together. The server then waits
for the next weight update.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar, cast
from uuid import uuid4

import ray
from ray.exceptions import RayActorError
from verl.workers.rollout.utils import ensure_async_iterator

from turntree.agents.errors import EngineLost

logger = logging.getLogger(__name__)

Method = TypeVar("Method", bound=Callable[..., Any])

RESTARTS = 8  #: restarts of a server by Ray
RESEND = -1  #: ``global_steps`` of an update that sends the last weights again


def retry_after_restart(method: Method) -> Method:
    """Mark an actor's method: Ray repeats a call that failed because the actor died."""
    return cast(Method, ray.method(max_task_retries=-1)(method))


def held(argument: Any) -> Any:
    """Return a Ray reference to a server's argument; keep the reference as long as Ray may restart the server.

    Ray (2.60, issue 53727) frees arguments above 100 kB that nobody references. Without the reference, Ray can restart
    an actor only once.
    """
    return ray.put(argument)


def is_restarted() -> bool:
    if not ray.is_initialized():
        return False
    context = ray.get_runtime_context()
    return context.get_actor_id() is not None and bool(context.was_current_actor_reconstructed)


def ask_for_weights(trainer: Any) -> None:
    """Ask the trainer's process, by any of its actors, to send its weights again when it is idle."""
    # verl prefixes the method's name with the roles of the actor.
    (name,) = [name for name in dir(trainer) if name.endswith("update_weights")]
    # Without a prefix, ``trainer`` is the worker next to a replica on separate devices. That worker already has the
    # last weights (``ray_weights``).
    options = {"mode": "naive"} if name != "update_weights" else {}
    getattr(trainer, name).remote(global_steps=RESEND, **options)


async def ask_if_alone(trainer: Any) -> None:
    """Call ``ask_for_weights`` if the trainer has one process; ``trainer`` is any of its actors."""
    if await trainer.__ray_call__.remote(_is_alone):
        ask_for_weights(trainer)


def _is_alone(_: Any) -> bool:
    # Runs in an actor of the trainer.
    import torch

    return torch.distributed.get_world_size() == 1


class ServerLife:
    """Track whether this process of a server has the trainer's weights; a restarted process lacks them at first."""

    def __init__(self, rank: int) -> None:
        self.id = uuid4().hex  # new in each process of the server; other code calls this id ``life``
        self.restarted = is_restarted()
        self._current = asyncio.Event()  # set once the weights are the trainer's
        if self.restarted:
            logger.warning("engine replica %d was restarted; it samples again once it has the trainer's weights", rank)
        else:
            self._current.set()

    async def wait_for_weights(self) -> None:
        await self._current.wait()

    def got_weights(self) -> None:
        self._current.set()

    def require_weights(self) -> None:
        if not self._current.is_set():
            raise EngineLost("the server was restarted and has no weights yet")

    def check(self, life: str | None) -> None:  # raise if the server was restarted since it returned ``life``
        if life is not None and life != self.id:
            raise EngineLost("the server was restarted during a weight update")


class RestartedServer:
    """Mix-in for weight senders, such as verl's ``ServerAdapter``, whose server Ray may restart; list it first.

    Not supported: a SGLang server that dies while it receives weights; verl's sender then ends the run.
    """

    replica_rank: int
    _global_steps: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sending = asyncio.Lock()

    async def server(self) -> Any:
        """Return the handle of the replica's server; ``None`` if another process sends weights to this server."""
        raise NotImplementedError

    async def send(self, server: Any, life: str, weights: Any, **kwargs: Any) -> None:
        await super().update_weights(weights, global_steps=None, **kwargs)  # type: ignore[misc]

    async def update_weights(self, weights: Any, *, global_steps: int | None = None, **kwargs: Any) -> None:
        async with self._sending:  # a repeated update and the next one do not mix
            if global_steps == RESEND:
                global_steps = self._global_steps
            self._global_steps = global_steps
            try:
                server = await self.server()
                if server is None:
                    await super().update_weights(weights, global_steps=global_steps, **kwargs)  # type: ignore[misc]
                    return
                life = await server.ready.remote()
                await self.send(server, life, weights, **kwargs)
                if global_steps is not None:
                    await server.set_global_steps.remote(global_steps, life)
            except (RayActorError, EngineLost) as error:
                logger.warning(
                    "the server of replica %d died during a weight update and samples nothing until the next one: %s",
                    self.replica_rank,
                    error,
                )
                async for _ in ensure_async_iterator(weights):
                    pass  # every trainer process must gather each tensor, or the other processes would wait forever
