"""The errors that this package raises deliberately; a bad answer is never one of them."""

from __future__ import annotations


class RewardError(Exception):
    """Base of all errors of this package."""


class UnknownAnswerFormat(RewardError, LookupError):
    """No data set has the name."""


class UnknownReward(RewardError, LookupError):
    """No reward is registered under the name."""


class RewardDefinitionError(RewardError, ValueError):
    """A reward or a rubric is defined in a way that cannot work."""


class IsolationError(RewardError, RuntimeError):
    """The process that isolates comparisons cannot be started, or is closed."""


class MissingQuestion(UserWarning):
    """Answers are compared without the question that their answer format needs, so that copies of it are paid."""
