"""A judge that is a language model, from plain values: the reward ``judge`` of a configuration."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turntree.agents.episodes.hints import read_settings
from turntree.agents.loop.participants import ParticipantSettings, opened_participant
from turntree.agents.scoring.engine_judge import Criteria, EngineJudge
from turntree.rewards import Reward, RewardDefinitionError, Sample

JUDGE = "judge"
"""Name of the reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings(ParticipantSettings):
    """The model that judges, what it looks for and how often it is asked."""

    criteria: str = ""
    """What earns which grade."""
    lowest: int = 0
    """The lowest grade, a reward of 0."""
    highest: int = 10
    """The highest grade, a reward of 1."""
    votes: int = 3
    """How many times each answer is graded."""
    max_tokens: int = 512
    """Most tokens of a vote."""

    def __post_init__(self) -> None:
        ParticipantSettings.__post_init__(self)
        if self.votes < 1:
            raise ValueError(f"votes must be at least 1, got {self.votes}")
        Criteria(text=self.criteria, low=self.lowest, high=self.highest)


def judging(values: Mapping[str, Any]) -> Reward:
    """The reward that ``values``, fields of ``JudgeSettings``, describe; its model is started at the first sample.

    Raises:
        RewardDefinitionError: If a key is unknown or a value out of range.
    """
    try:
        settings = read_settings(JudgeSettings, values, f"reward {JUDGE!r}")
    except (TypeError, ValueError) as error:
        raise RewardDefinitionError(str(error)) from error
    return Reward(name=JUDGE, function=functools.partial(_judged, settings), decides=True)


def _judged(settings: JudgeSettings, sample: Sample) -> float | None:
    return opened(settings)(sample)


@functools.cache
def opened(settings: JudgeSettings) -> EngineJudge:
    """The judge, its model started or reached; one for each process and settings."""
    participant, thread = opened_participant(settings)
    return EngineJudge(
        participant,
        Criteria(text=settings.criteria, low=settings.lowest, high=settings.highest),
        votes=settings.votes,
        sampling=settings.sampling,
        seed=settings.seed,
        seconds=settings.seconds,
        thread=thread,
    )
