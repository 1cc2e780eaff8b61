"""Size limits of answers; anything larger is refused before it is parsed.

The limits are far above every answer of the public data sets and far below a harmful size.
"""

from __future__ import annotations

MAX_TEXT = 1_000_000  #: characters read of a text; of a longer text, only its last characters
MAX_ANSWER = 4_000  #: characters of an answer
MAX_GOLD = 20_000  #: characters of a gold answer
MAX_TOKENS = 1_500  #: tokens of an answer
MAX_NESTING = 40  #: nested brackets, groups and commands
MAX_DIGITS = 1_500  #: digits of one number
MAX_BITS = 200_000  #: bits of an intermediate exact number
MAX_POWER_BITS = 10**12  #: binary magnitude of an inexact power
MAX_FACTORIAL = 5_000  #: argument of an exact factorial; larger arguments, up to ``MAX_GAMMA``, are approximated
MAX_GAMMA = 10**6  #: argument of any factorial or binomial
MAX_TERMS = 20_000  #: terms of a finite sum or product
MAX_ELEMENTS = 400  #: elements of a set, tuple or matrix
MAX_STEPS = 60_000  #: nodes visited in one evaluation of an expression


class LimitExceeded(Exception):
    """An expression exceeds the limits above."""
