"""Infrastructure failures of episodes, by kind, and programs that broke by themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.envs.failure import FailureKind

__all__ = ["PROGRAM_ERROR", "FailureKind", "count_failures", "failure_kind", "program_error"]

PROGRAM_ERROR = "program_error"
"""Key of the task's metadata in the episode of a program without an answer: why there is none."""


def failure_kind(episode: Episode) -> FailureKind | None:
    """The kind of failure that ended the episode; ``None`` without a failure.

    Args:
        episode: Any; one whose answer could not be judged counts as a failure of the reward.
    """
    if episode.stop_reason is StopReason.FAILURE:
        return episode.failure_kind or FailureKind.ENVIRONMENT
    return FailureKind.REWARD if episode.ungraded else None


def count_failures(episodes: Iterable[Episode]) -> Counter[FailureKind]:
    """The number of failed episodes of each kind."""
    return Counter(kind for episode in episodes if (kind := failure_kind(episode)) is not None)


def program_error(episode: Episode) -> str:
    """Why the episode's program gave no answer by its own fault; empty if it did, or if a limit of the policy's turns
    ended it."""
    if episode.task is None or (episode.turns and episode.stop_reason.is_truncated()):
        return ""
    return str(episode.task.metadata.get(PROGRAM_ERROR, ""))
