"""Kinds of infrastructure failure that end an episode, and their counts.

A failure is never a verdict on the policy. Its kind is read from the one line
that ``rollout`` and ``judge_episodes`` store in ``Episode.failure``, so that
episodes of older records can be counted too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from turntree.agents.episodes.episode import Episode, StopReason


class FailureKind(StrEnum):
    """The part of the infrastructure that failed."""

    ENVIRONMENT = "environment"
    """The environment raised, or could not be created."""
    TOOL = "tool"
    """A tool raised, or the sandbox that ran its code died."""
    REWARD = "reward"
    """A reward raised, or could not judge."""
    ENGINE = "engine"
    """The engine refused, aborted or lost a turn."""
    TIMEOUT = "timeout"
    """A deadline passed that is not a limit of the task."""


_ENGINE = re.compile(r"(Engine\w*|NoReplicas|Ray\w*|Actor\w*Error|WorkerCrashedError|NodeDiedError|AsyncioActorExit)\b")
_TOOL = re.compile(r"tool |.*\b(SandboxError|ToolFailure)\b")
_REWARD = re.compile(r"the rewards |.*\b(UndecidedAnswer|IsolationError|RewardError)\b")
_TIMEOUT = re.compile(r"\bTimeoutError\b|\btook longer than\b|did not answer within|busy until the deadline")


def failure_kind(episode: Episode) -> FailureKind | None:
    """The kind of failure that ended the episode; ``None`` without a failure.

    Args:
        episode: Any; one whose answer could not be judged counts as a failure of the reward.
    """
    if episode.stop_reason is not StopReason.FAILURE:
        return FailureKind.REWARD if episode.undecided else None
    text = episode.failure
    if _REWARD.match(text):
        return FailureKind.REWARD
    if _ENGINE.match(text):
        return FailureKind.ENGINE
    if _TIMEOUT.search(text):
        return FailureKind.TIMEOUT
    return FailureKind.TOOL if _TOOL.match(text) else FailureKind.ENVIRONMENT


def count_failures(episodes: Iterable[Episode]) -> Counter[FailureKind]:
    """The number of failed episodes of each kind."""
    return Counter(kind for episode in episodes if (kind := failure_kind(episode)) is not None)
