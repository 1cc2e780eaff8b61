"""The environment's answer to a turn that calls no tool."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from turntree.envs.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The environment's answer to one turn."""

    messages: Sequence[Message] = ()
    """New messages; may be empty once the episode is over."""
    reward: float = 0.0
    """Reward of the turn."""
    done: bool = False
    """Whether the task ends the episode."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Named components, for the record; only ``reward`` is used in training."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.reward) and all(map(math.isfinite, self.rewards.values()))):
            named = {"reward": self.reward, **self.rewards}
            name = next(name for name, value in named.items() if not math.isfinite(value))
            raise ValueError(f"reward {name!r} must be a finite number, got {named[name]!r}")
        for message in self.messages:
            if not isinstance(message, Message):
                raise TypeError(f"Reply.messages must hold Message objects, got {message!r}")
