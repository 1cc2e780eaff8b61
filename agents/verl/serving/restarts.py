"""Recovery of a server that Ray has restarted after its process died.

It has the weights that the run began with, which are no longer the policy's.
If the trainer is one process, that process is idle while episodes are played
and sends its weights again; if it is several, they gather weights
together, and the server waits for the next update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import ray

Method = TypeVar("Method", bound=Callable[..., Any])

RESEND = -1
"""``global_steps`` of an update that repeats the last one."""


def retry_after_restart(method: Method) -> Method:
    """Mark an actor's method: a call that fails because the actor died is made again once it is back."""
    return cast(Method, ray.method(max_task_retries=-1)(method))


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
    getattr(trainer, name).remote(global_steps=RESEND, mode="naive")
