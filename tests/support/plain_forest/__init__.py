"""The first, plain store, in pure Python: the oracle that the store is held against.

It counts what followed each context instead of linking what was said, so the
two share no code but the form of a draft. It keeps what it is told for as long
as its quotas say, and takes counts back exactly.
"""

from plain_forest.config import PlainConfig
from plain_forest.forest import PlainForest, PlainStats

__all__ = ["PlainConfig", "PlainForest", "PlainStats"]
