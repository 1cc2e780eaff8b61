"""Entries sent with a request into the processes of an external engine: state, seed and guess.

Each entry is optional and a JSON value, so that an engine in process and its
server take the same.

Invariant: nothing here imports an engine, so that both ends can use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turntree.agents.engines.state_wire import KEY, from_wire, to_wire
from turntree.spec_tree import DialogueState

DRAFT = "turntree_draft"
"""Name of the caller's guess: token ids."""
SEED = "turntree_seed"
"""Name of the seed of all noise: an unsigned 64-bit integer, as text, since JSON readers may round it."""
WORD = 1 << 64
"""Number of possible seeds."""


def request_entries(
    *, state: DialogueState | None = None, seed: int | None = None, draft: Sequence[int] = ()
) -> dict[str, Any]:
    """The entries of one request.

    Args:
        state: The dialogue state.
        seed: Seed of the request's noise; taken modulo 2**64.
        draft: A guess of the turn, token ids, shape (tokens,).

    Example:
        >>> request_entries(seed=-1, draft=(5, 7))
        {'turntree_seed': '18446744073709551615', 'turntree_draft': [5, 7]}
    """
    entries: dict[str, Any] = {}
    if state is not None:
        entries[KEY] = to_wire(state)
    if seed is not None:
        entries[SEED] = str(seed % WORD)
    if len(draft):
        entries[DRAFT] = [int(token) for token in draft]
    return entries


def state_of(entries: Mapping[str, Any] | None) -> DialogueState | None:
    """The state of a request, ``None`` if it has none.

    Raises:
        ValueError: If the entry is not a state.
    """
    value = (entries or {}).get(KEY)
    return None if value is None else from_wire(value)


def seed_of(entries: Mapping[str, Any] | None) -> int | None:
    """The seed of a request, in [0, 2**64), ``None`` if it has none.

    Raises:
        ValueError: If the entry is not an integer.
    """
    value = (entries or {}).get(SEED)
    return None if value is None else int(value) % WORD


def draft_of(entries: Mapping[str, Any] | None) -> list[int]:
    """The guess of a request; empty if it has none.

    Raises:
        ValueError: If the entry is not a list of token ids.
    """
    return [int(token) for token in (entries or {}).get(DRAFT) or ()]
