from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from turntree.envs.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The environment's answer to a turn that calls no tool."""

    messages: Sequence[Message] = ()  #: new messages; may be empty if the episode is over
    reward: float = 0.0  #: reward of the turn
    done: bool = False  #: whether the task ends the episode
    #: named components, for the record only; training uses ``reward``
    rewards: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.reward) and all(map(math.isfinite, self.rewards.values()))):
            named = {"reward": self.reward, **self.rewards}
            name = next(name for name, value in named.items() if not math.isfinite(value))
            raise ValueError(f"reward {name!r} must be a finite number, got {named[name]!r}")
        for message in self.messages:
            if not isinstance(message, Message):
                raise TypeError(f"Reply.messages must hold Message objects, got {message!r}")
