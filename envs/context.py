"""What a tool may know of the episode that calls it, without the model seeing it.

A parameter annotated ``Context`` is filled in by the environment and left out
of the schema. Its dictionary ``state`` is where a plain function keeps what
one episode must remember; it goes into snapshots, so it holds what pickles.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from turntree.envs.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The episode around one call."""

    task: Task
    """What the episode is about, the answer included."""
    np_random: np.random.Generator
    """The environment's generator: what a tool draws is decided by the seed of ``reset``."""
    turn: int
    """Turns of the policy so far, the calling one included."""
    state: dict[str, Any] = field(default_factory=dict)
    """Whatever the tools of this episode want to keep; empty at first, shared by all of them."""
