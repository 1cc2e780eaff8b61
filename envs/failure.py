"""Kinds of infrastructure failure, and the kind that an exception is.

A failure is never a verdict on the policy.
"""

from __future__ import annotations

from enum import StrEnum

from turntree.envs.errors import Escape, SandboxError, UngradedAnswer
from turntree.rewards.errors import RewardError


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


def kind_of(error: Exception, at_work: FailureKind) -> FailureKind:
    """The kind of failure that an exception is.

    Args:
        at_work: The part that raised it; it counts where the class of the error does not tell.

    >>> str(kind_of(OSError("the disk is full"), FailureKind.TOOL))
    'tool'
    >>> str(kind_of(TimeoutError("no answer"), FailureKind.TOOL))
    'timeout'
    """
    if isinstance(error, TimeoutError):
        return FailureKind.TIMEOUT
    if isinstance(error, UngradedAnswer | RewardError):
        return FailureKind.REWARD
    return FailureKind.TOOL if isinstance(error, SandboxError) else at_work


def describe(error: BaseException) -> str:
    """``error`` in one line, its class first.

    >>> describe(ValueError("no such\\n  city"))
    'ValueError: no such city'
    """
    text = str(error) if isinstance(error, Escape) else f"{type(error).__name__}: {error}"
    return " ".join(text.split()).removesuffix(":")
