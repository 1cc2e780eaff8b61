"""Entries sent with a request into SGLang's processes, in ``sampling_params["custom_params"]``, and returned.

They are the entries of ``request_wire``, and a mark.

Invariant: nothing here imports SGLang, so that both ends can use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turntree.agents.engines.request_wire import WORD, request_entries
from turntree.spec_tree.splitmix import FIRST, GOLDEN, SECOND

DRAFTED = "turntree_drafted"
"""Returned in ``meta_info``: draft nodes of each verify step, padding left out, shape (steps,)."""
ACCEPTED = "turntree_accepted"
"""Returned in ``meta_info``: draft nodes that the policy sampled in each verify step, shape (steps,)."""
OURS = "turntree"
"""Key of the mark of a request that is drawn by ``draws`` and ends only at its own stop tokens."""
JUDGES = "turntree_judges"
"""Key in a scheduler's internal state: whether it judges drafts in the pass over a prompt."""

_FIRST_INVERSE, _SECOND_INVERSE = pow(FIRST, -1, WORD), pow(SECOND, -1, WORD)


def custom_params(**entries: Any) -> dict[str, Any]:
    """The mark, and the entries of one request as ``request_entries`` makes them.

    Example:
        >>> custom_params(seed=-1, draft=(5, 7))
        {'turntree': True, 'turntree_seed': '18446744073709551615', 'turntree_draft': [5, 7]}
    """
    return {OURS: True, **request_entries(**entries)}


def is_ours(entries: Mapping[str, Any] | None) -> bool:
    """Whether a request has the mark."""
    return bool(entries and entries.get(OURS))


def shifted_seed(seed: int, by: int) -> int:
    """The seed whose noise at position ``n + by`` is that of ``seed`` at ``n``.

    SGLang counts the position of a token in the context, turntree's noise its position in the turn; with the seed
    shifted by the tokens before the turn, the two agree. The mixing of ``spec_tree.rules.noise`` is a bijection, so
    the shift is exact.

    Args:
        seed: Any integer, taken modulo 2**64.
        by: Positions.

    Returns:
        In [0, 2**64).
    """
    stream = (_mix((seed + GOLDEN) % WORD) - by * GOLDEN) % WORD
    return (_unmix(stream) - GOLDEN) % WORD


def _mix(x: int) -> int:
    x = (x ^ x >> 30) * FIRST % WORD
    x = (x ^ x >> 27) * SECOND % WORD
    return x ^ x >> 31


def _unmix(x: int) -> int:
    x = _unshifted(x, 31) * _SECOND_INVERSE % WORD
    x = _unshifted(x, 27) * _FIRST_INVERSE % WORD
    return _unshifted(x, 30)


def _unshifted(x: int, by: int) -> int:
    """The number that gives ``x`` when it is combined with itself, shifted right."""
    original = x
    for _ in range(63 // by):
        original = x ^ original >> by
    return original
