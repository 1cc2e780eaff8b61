"""What an episode was lost to: the surroundings, by kind.

A failure is never a verdict on the policy. It is told apart here by the one
line that ``rollout`` and ``judge_episodes`` leave in ``Episode.failure``, so
that episodes of older records can be counted too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum

from turntree.agents.episodes.episode import Episode, StopReason


class FailureKind(StrEnum):
    """What failed."""

    ENVIRONMENT = "environment"
    """The environment raised, or could not be made."""
    TOOL = "tool"
    """A tool raised, or the sandbox that ran its code died."""
    REWARD = "reward"
    """A reward raised, or could not decide."""
    ENGINE = "engine"
    """The engine refused, aborted or lost a turn."""
    TIMEOUT = "timeout"
    """A deadline passed that is no limit of the task."""


_ENGINE = re.compile(r"(Engine\w*|NoReplicas|Ray\w*|Actor\w*Error|WorkerCrashedError|NodeDiedError|AsyncioActorExit)\b")
_TOOL = re.compile(r"tool |.*\b(SandboxError|ToolFailure)\b")
_REWARD = re.compile(r"the rewards |.*\b(UndecidedAnswer|IsolationError|RewardError)\b")
_TIMEOUT = re.compile(r"\bTimeoutError\b|\btook longer than\b|did not answer within|busy until the deadline")


def failure_kind(episode: Episode) -> FailureKind | None:
    """What the episode was lost to; ``None`` for one that was not.

    Args:
        episode: Any; one whose answer could not be judged counts as lost to the reward.
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
    """Lost episodes by kind."""
    return Counter(kind for episode in episodes if (kind := failure_kind(episode)) is not None)
