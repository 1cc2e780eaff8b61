"""Turns for a ledger."""

from __future__ import annotations

import numpy as np

from turntree.spec_tree.ledger import StoredTurn


def stored_turn(*tokens: int, room: int = 8, top: int = 2, seed: int | None = 1, version: int = 0) -> StoredTurn:
    """A turn of ``tokens``, whose log-probabilities are all different."""
    count = len(tokens)
    return StoredTurn(
        tokens=np.array(tokens, np.int32),
        logprobs=-np.arange(1, count + 1, dtype=np.float32),
        top_ids=np.arange(count * top, dtype=np.int32).reshape(count, top),
        top_logprobs=-np.arange(count * top, dtype=np.float32).reshape(count, top),
        seed=seed,
        version=version,
        room=room,
        stopped=count % 2 == 0,
    )
