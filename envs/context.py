"""The episode's state that a tool may read, hidden from the model.

A parameter annotated ``Context`` is filled in by the environment and left out
of the schema. In its dictionary ``state`` a plain function keeps the values
that one episode must remember; it goes into snapshots, so they must pickle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from turntree.envs.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The episode in which a tool is called."""

    task: Task
    """The episode's task, the answer included."""
    np_random: np.random.Generator
    """The environment's generator; its draws are determined by the seed of ``reset``."""
    turn: int
    """Turns of the policy so far, the calling one included."""
    state: dict[str, Any] = field(default_factory=dict)
    """Values that the tools of this episode keep; empty at first, shared by all of them."""
