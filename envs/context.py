from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from turntree.envs.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """State of the running episode that a tool may read and the model does not see.

    A tool's parameter annotated ``Context`` is filled in by the environment and left out of the tool's schema.
    """

    task: Task  #: includes the answer
    np_random: np.random.Generator  #: the environment's generator, seeded by ``reset``
    turn: int  #: turns of the policy so far, including the one that makes this call
    #: shared by all tools of the episode, empty at its start; part of snapshots, so values must pickle
    state: dict[str, Any] = field(default_factory=dict)
