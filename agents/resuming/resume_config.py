"""Configuration of asynchronous training. Imports only the standard library."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OnResume(StrEnum):
    """What happens to tokens sampled before a weight update."""

    KEEP = "keep"
    """The new policy continues the turn after the old tokens, as in verl: several policies sample one turn."""
    TURN = "turn"
    """The new policy re-verifies the interrupted turn only: one policy per turn, several per episode."""
    EPISODE = "episode"
    """The new policy re-verifies every turn of each episode not yet trained on, finished or not: one policy per row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeConfig:
    """Section ``turntree.asynchronous`` of a training configuration; synchronous trainings ignore it."""

    on_resume: OnResume = OnResume.EPISODE
    """What happens to tokens sampled before a weight update: keep, turn or episode."""
    in_order: bool = True
    """With ``episode``: train on episodes in submission order, even if that means waiting; else as they finish."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "on_resume", OnResume(self.on_resume))
