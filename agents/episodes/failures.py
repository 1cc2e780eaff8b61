"""Infrastructure failures of episodes by kind, and errors of programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.envs.failure import FailureKind

__all__ = ["PROGRAM_ERROR", "FailureKind", "count_failures", "failure_kind", "program_error"]

# Key of the task's metadata whose value is the reason why the episode's program gave no answer.
PROGRAM_ERROR = "program_error"


def failure_kind(episode: Episode) -> FailureKind | None:
    """Return the kind of failure that ended the episode; ``REWARD`` for an ungraded episode."""
    if episode.stop_reason is StopReason.FAILURE:
        return episode.failure_kind or FailureKind.ENVIRONMENT
    return FailureKind.REWARD if episode.ungraded else None


def count_failures(episodes: Iterable[Episode]) -> Counter[FailureKind]:
    return Counter(kind for episode in episodes if (kind := failure_kind(episode)) is not None)


def program_error(episode: Episode) -> str:
    """Return the error of the program itself that left the episode without an answer; empty without such an error."""
    # If a limit ended the program's turns, the missing answer is not the program's own error.
    if episode.task is None or (episode.turns and episode.stop_reason.is_truncated()):
        return ""
    return str(episode.task.metadata.get(PROGRAM_ERROR, ""))
