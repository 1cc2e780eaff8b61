"""Size limits of answers; anything larger is refused before it is read.

Invariant: checking costs time linear in the answer. The limits are far above
every answer of the public data sets and far below a harmful size.
"""

from __future__ import annotations

MAX_TEXT = 1_000_000
"""Characters of a text that are read; of a longer one, the last ones."""
MAX_ANSWER = 4_000
"""Most characters of an answer."""
MAX_GOLD = 20_000
"""Most characters of a gold answer."""
MAX_TOKENS = 1_500
"""Most tokens of an answer."""
MAX_NESTING = 40
"""Greatest nesting of brackets, groups and commands."""
MAX_DIGITS = 1_500
"""Most digits of one number."""
MAX_BITS = 200_000
"""Most bits of an intermediate exact number."""
MAX_POWER_BITS = 10**12
"""Greatest binary magnitude of an inexact power."""
MAX_FACTORIAL = 5_000
"""Greatest argument of an exact factorial; beyond, up to ``MAX_GAMMA``, it is approximated."""
MAX_GAMMA = 10**6
"""Greatest argument of any factorial or binomial."""
MAX_TERMS = 20_000
"""Most terms of a finite sum or product."""
MAX_ELEMENTS = 400
"""Most elements of a set, tuple or matrix."""
MAX_STEPS = 60_000
"""Most nodes visited in one evaluation of an expression."""


class LimitExceeded(Exception):
    """An expression is larger than the limits allow."""
