"""Recovery of a server that Ray has restarted after its process died, the same for every engine.

It has the weights that the run began with, which are no longer the policy's.
If the trainer is one process, that process is idle while episodes are played
and sends its weights again; if it is several, they gather weights
together, and the server waits for the next update. Until then it samples nothing.
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

RESTARTS = 8
"""Times that Ray restarts a server."""
RESEND = -1
"""``global_steps`` of an update that repeats the last one."""


def retry_after_restart(method: Method) -> Method:
    """Mark an actor's method: a call that fails because the actor died is made again once it is back."""
    return cast(Method, ray.method(max_task_retries=-1)(method))


def held(argument: Any) -> Any:
    """A reference to an argument of a server, to be kept as long as the server may be restarted.

    Of arguments above 100 kB Ray (2.60, its issue 53727) keeps only those that somebody holds: without them an actor
    is restarted once and no second time.
    """
    return ray.put(argument)


def is_restarted() -> bool:
    """Whether this process is a restarted actor."""
    if not ray.is_initialized():
        return False
    context = ray.get_runtime_context()
    return context.get_actor_id() is not None and bool(context.was_current_actor_reconstructed)


def ask_for_weights(trainer: Any) -> None:
    """Ask the trainer's process to send its weights again, when it is idle.

    Args:
        trainer: Handle of its actor; verl names the method after the actor's roles.
    """
    (name,) = [name for name in dir(trainer) if name.endswith("update_weights")]
    # The worker beside a replica on devices of its own has the last weights itself (``ray_weights``).
    how = {"mode": "naive"} if name != "update_weights" else {}
    getattr(trainer, name).remote(global_steps=RESEND, **how)


async def ask_if_alone(trainer: Any) -> None:
    """``ask_for_weights``, if the trainer is one process; ``trainer`` is the handle of any of its actors."""
    if await trainer.__ray_call__.remote(_is_alone):
        ask_for_weights(trainer)


def _is_alone(_: Any) -> bool:
    """In an actor of the trainer."""
    import torch

    return torch.distributed.get_world_size() == 1


class ServerLife:
    """One process of a server: whether it samples with the trainer's weights, which a restarted one lacks at first."""

    def __init__(self, rank: int) -> None:
        self.id = uuid4().hex
        """Differs from that of every other process of the server."""
        self.restarted = is_restarted()
        self._current = asyncio.Event()
        if self.restarted:
            logger.warning("engine replica %d was restarted; it serves once it has the weights again", rank)
        else:
            self._current.set()

    async def wait_for_weights(self) -> None:
        """Wait until the weights are the trainer's."""
        await self._current.wait()

    def got_weights(self) -> None:
        """The weights are the trainer's."""
        self._current.set()

    def require_weights(self) -> None:
        """Raise if there are none.

        Raises:
            EngineLost: If the server was restarted and has no weights yet.
        """
        if not self._current.is_set():
            raise EngineLost("it was restarted and has no weights yet")

    def check(self, life: str | None) -> None:
        """Raise if an update of the weights began in another process; ``life`` is its ``id``, ``None`` checks nothing.

        Raises:
            EngineLost: If the server was restarted since.
        """
        if life is not None and life != self.id:
            raise EngineLost("it was restarted during an update of its weights")


class RestartedServer:
    """Mix-in before a weight sender, such as verl's ``ServerAdapter``: Ray may have restarted the server.

    Not covered: a server of SGLang that dies while weights are on their way; verl's sender then ends the run.
    """

    replica_rank: int
    _global_steps: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sending = asyncio.Lock()

    async def server(self) -> Any:
        """Handle of the replica's server; ``None`` if another process talks to it."""
        raise NotImplementedError

    async def send(self, server: Any, life: str, weights: Any, **kwargs: Any) -> None:
        """Send weights to the process of the server whose ``ready`` returned ``life``."""
        await super().update_weights(weights, global_steps=None, **kwargs)  # type: ignore[misc]

    async def update_weights(self, weights: Any, *, global_steps: int | None = None, **kwargs: Any) -> None:
        """As verl's, once the server is there.

        Args:
            global_steps: Updates that the trainer has made; ``RESEND`` repeats the last call's.
        """
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
                    "the server of replica %d was lost during an update; it has no weights until the next one: %s",
                    self.replica_rank,
                    error,
                )
                async for _ in ensure_async_iterator(weights):
                    pass  # the trainer's other processes gather each tensor with it
