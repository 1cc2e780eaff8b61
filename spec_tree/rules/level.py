"""Levels of exactness: how strongly a token is guaranteed to be a sample of the policy.

A level is a claim about the distribution that a token was drawn from, not about the token itself. An exact acceptance
rule yields A, B or C for any draft. Only a rule that trades exactness for speed yields D.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Level(StrEnum):
    """Exactness of one sampled token. A sequence's levels are a string with one letter per token."""

    A = "A"  #: exact given the policy, for any draft: the noise is fresh
    B = "B"  #: exact given the policy: a stored turn was replayed, but the policy was not trained on that turn
    C = "C"  #: exact only on average over policies: the policy was trained on the replayed turn
    D = "D"  #: biased by a lenience above 1: drawn from the recorded behaviour distribution, not from the policy


def level_codes(levels: str) -> NDArray[np.int8]:
    """Return 1 for A to 4 for D, shape (tokens,). Code 0 is left for tokens that were not sampled.

    Raises:
        ValueError: If a letter is not a level.

    >>> level_codes("ACD").tolist()
    [1, 3, 4]
    """
    known = "".join(Level)
    if unknown := set(levels) - set(known):
        raise ValueError(f"a level is one of {known}, got {sorted(unknown)}")
    return np.array([known.index(letter) + 1 for letter in levels], np.int8)


def worst_level(levels: str) -> str:
    """Return the weakest claim among ``levels``; A for an empty string.

    >>> worst_level("AACA")
    'C'
    """
    return max(levels, default=str(Level.A))
