"""Levels of exactness: how far a token is guaranteed to be the policy's own draw.

A level is a claim about the distribution that a token was drawn from, never about the token. Whatever was
drafted, an exact rule yields A, B or C; only a rule that trades exactness for speed yields D.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Level(StrEnum):
    """Exactness of one sampled token. A sequence's levels are a string with one letter per token."""

    A = "A"  #: exact given the policy: fresh noise, whatever the draft was
    B = "B"  #: exact given the policy, since the policy was not trained on the replayed turn
    C = "C"  #: exact in the marginal only: the policy was trained on the replayed turn
    D = "D"  #: biased by lenience: drawn from the recorded behaviour distribution, not from the policy


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
    """Return the weakest claim among ``levels``; A if there are none.

    >>> worst_level("AACA")
    'C'
    """
    return max(levels, default=str(Level.A))
