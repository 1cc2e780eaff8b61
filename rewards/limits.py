"""How large an answer may be; everything else is refused before it is read.

Invariant: checking costs time linear in the answer. The limits stand far above
every answer of the public data sets and far below what hurts.
"""

from __future__ import annotations

MAX_TEXT = 1_000_000
"""Characters of a text that are looked at; of a longer one, the last ones."""
MAX_ANSWER = 4_000
"""Characters of an answer."""
MAX_GOLD = 20_000
"""Characters of a gold answer."""
MAX_TOKENS = 1_500
"""Tokens of an answer."""
MAX_NESTING = 40
"""Brackets, groups and commands inside one another."""
MAX_DIGITS = 1_500
"""Digits of one number."""
MAX_BITS = 200_000
"""Bits of an exact number that comes up on the way."""
MAX_POWER_BITS = 10**12
"""Binary magnitude of an inexact power."""
MAX_FACTORIAL = 5_000
"""Argument of an exact factorial; beyond, up to ``MAX_GAMMA``, it is approximated."""
MAX_GAMMA = 10**6
"""Argument of any factorial or binomial."""
MAX_TERMS = 20_000
"""Terms of a finite sum or product."""
MAX_ELEMENTS = 400
"""Elements of a set, tuple or matrix."""
MAX_STEPS = 60_000
"""Nodes that evaluating one expression once may visit."""


class LimitExceeded(Exception):
    """An expression is larger than the limits allow."""
