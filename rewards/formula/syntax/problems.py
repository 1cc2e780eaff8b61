"""Reasons why an answer has no value. These exceptions never leave the package."""

from __future__ import annotations


class Malformed(Exception):
    """The text is not well-formed mathematics."""


class Suspect(Exception):
    """The text asks for credit in a way that no honest answer does."""

    def __init__(self, flag: str) -> None:
        super().__init__(flag)
        self.flag = flag


class Undefined(Exception):
    """The expression has no value: a division by zero, a difference of infinities."""


class CannotEvaluate(Exception):
    """The expression has a value that this package does not compute."""
