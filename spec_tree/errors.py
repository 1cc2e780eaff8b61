"""What can go wrong with a forest."""

from __future__ import annotations


class ForestError(Exception):
    """Anything that a forest refuses."""


class UnknownTurn(ForestError, LookupError):
    """A handle that ``begin`` did not give, or whose turn has ended."""


class DamagedForest(ForestError, ValueError):
    """A file that is not a forest, is another version's, or is not whole."""
