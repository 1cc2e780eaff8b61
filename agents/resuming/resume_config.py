"""Configuration of asynchronous training. Imports the standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OnResume(StrEnum):
    """What becomes of sampled tokens when the weights change under them."""

    KEEP = "keep"
    """An interrupted turn goes on behind its tokens, as verl has it: a turn of several policies."""
    TURN = "turn"
    """An interrupted turn is verified again by the new policy: a turn of one policy, in an episode of several."""
    EPISODE = "episode"
    """So is every turn of an episode that is not trained on yet, a finished one too: a row of the present policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeConfig:
    """Section ``turntree.asynchronous`` of a training configuration; a synchronous training does not read it."""

    on_resume: OnResume = OnResume.EPISODE
    """What becomes of sampled tokens when the weights change: keep, turn or episode."""
    in_order: bool = True
    """With ``episode``: whether a step is trained on what was submitted first, and waits for the longest of it; else on
    what has ended and been verified again first, as verl has it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "on_resume", OnResume(self.on_resume))
