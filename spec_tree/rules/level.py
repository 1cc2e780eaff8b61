"""Levels of exactness: how far a token is guaranteed to be the policy's own draw.

Invariant: a level is a claim about the distribution that the token was drawn from, never about the
token: whatever was drafted, a rule that is exact yields A, B or C, and only a
rule that trades the distribution for speed yields D.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Level(StrEnum):
    """Exactness of one sampled token. Strings of them, one letter a token, accompany the tokens."""

    A = "A"
    """Exact given the policy: fresh noise, whatever the draft was."""
    B = "B"
    """Exact given the policy, since the policy was not trained on the replayed turn."""
    C = "C"
    """Exact in the marginal only: the policy was trained on the very turn that was replayed."""
    D = "D"
    """Biased by lenience: drawn from the recorded behaviour distribution, not from the policy."""


def level_codes(levels: str) -> NDArray[np.int8]:
    """Levels as small integers: 1 for A to 4 for D, shape (tokens,). 0 is left for tokens that were not sampled.

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
    """The weakest claim among ``levels``; A for none.

    >>> worst_level("AACA")
    'C'
    """
    return max(levels, default=str(Level.A))
