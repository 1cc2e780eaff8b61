"""The errors of a forest."""

from __future__ import annotations


class ForestError(Exception):
    """Base of all errors of a forest."""


class UnknownTurn(ForestError, LookupError):
    """A handle that ``begin`` did not return, or whose turn has ended."""


class DamagedFile(ForestError, ValueError):
    """A file, or bytes, that are not what they are read as; the message completes a sentence about it."""


class DamagedForest(ForestError, ValueError):
    """A file that is not a forest, is of another version, or is incomplete."""
