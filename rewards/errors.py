"""Errors of this package. A bad answer never raises an error."""

from __future__ import annotations


class RewardError(Exception):
    """Base class of this package's errors."""


class UnknownAnswerFormat(RewardError, LookupError):
    """No data set has this name."""


class UnknownReward(RewardError, LookupError):
    """No reward is registered under this name."""


class RewardDefinitionError(RewardError, ValueError):
    """A reward or a rubric is defined in a way that cannot work."""


class IsolationError(RewardError, RuntimeError):
    """The process that isolates comparisons is closed or cannot be started."""


class MissingQuestion(UserWarning):
    """The format needs the question, but none was given: copies of the question will count as right."""
