"""Creates the reward ``judge``, a language-model judge, from the plain values of a configuration."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSettings(ParticipantSettings):
    """The judge's model, its criteria and its votes."""

    criteria: str = ""
    """Description of which answers earn which grade."""
    lowest: int = 0
    """Lowest grade, a reward of 0."""
    highest: int = 10
    """Highest grade, a reward of 1."""
    votes: int = 3
    """Number of times that each answer is graded."""
    max_tokens: int = 512
    """Token limit per vote."""

    def __post_init__(self) -> None:
        ParticipantSettings.__post_init__(self)
        if self.votes < 1:
            raise ValueError(f"votes must be at least 1, got {self.votes}")
        Criteria(text=self.criteria, low=self.lowest, high=self.highest)


def judging(values: Mapping[str, Any]) -> Reward:
    """Create the reward from fields of ``JudgeSettings``; the model is started for the first sample."""
    try:
        settings = read_settings(JudgeSettings, values, f"reward {JUDGE!r}")
    except (TypeError, ValueError) as error:
        raise RewardDefinitionError(str(error)) from error
    return Reward(name=JUDGE, function=functools.partial(_grade, settings), decides=True)


def _grade(settings: JudgeSettings, sample: Sample) -> float | None:
    return opened(settings)(sample)


# One judge per process and settings, because the judge's model may be an engine in this process.
@functools.cache
def opened(settings: JudgeSettings) -> EngineJudge:
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
