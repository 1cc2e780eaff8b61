from __future__ import annotations


class ForestError(Exception):
    """Base class of the errors of a ``SpecForest``."""


class UnknownTurn(ForestError, LookupError):
    """The handle was not returned by ``begin``, or its turn has ended."""


class DamagedFile(ForestError, ValueError):
    """A file or bytes cannot be read; the message is a clause such as "it is not a regular file"."""


class DamagedForest(ForestError, ValueError):
    """The file is not a saved forest, is incomplete, or is of another version."""
