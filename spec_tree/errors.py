"""The errors of a forest."""

from __future__ import annotations


class ForestError(Exception):
    """Base of all errors of a forest."""


class UnknownTurn(ForestError, LookupError):
    """A handle that ``begin`` did not return, or whose turn has ended."""


class DamagedForest(ForestError, ValueError):
    """A file that is not a forest, is of another version, or is incomplete."""
