"""Kinds of infrastructure failure. An infrastructure failure is never a verdict on the policy."""

from __future__ import annotations

from enum import StrEnum

from turntree.envs.errors import Escape, SandboxError, UngradedAnswer
from turntree.rewards.errors import RewardError


class FailureKind(StrEnum):
    ENVIRONMENT = "environment"  #: the environment raised, or could not be created
    TOOL = "tool"  #: a tool raised, or the sandbox that ran its code died
    REWARD = "reward"  #: a reward function raised, or could not grade
    ENGINE = "engine"  #: the engine rejected, aborted or lost a turn
    TIMEOUT = "timeout"  #: a deadline passed that is not a limit of the task


def kind_of(error: Exception, at_work: FailureKind) -> FailureKind:
    """Classify an exception.

    Args:
        at_work: The part that raised the exception; returned if the exception's class does not tell the kind.

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
    """Describe an error in one line, its class first.

    >>> describe(ValueError("no such\\n  city"))
    'ValueError: no such city'
    """
    text = str(error) if isinstance(error, Escape) else f"{type(error).__name__}: {error}"
    return " ".join(text.split()).removesuffix(":")
