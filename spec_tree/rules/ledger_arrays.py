"""Conversion of a ledger to arrays, for a snapshot, and back.

Keys are tuples of numbers. The live state of a ledger besides its turns (the
running step, the floor, the counts) is included, so that a restored one hands
out and drops what the saved one would have.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.rules.ledger import Ledger, StoredTurn, _Entry

Arrays = dict[str, NDArray[Any]]


def ledger_arrays(ledger: Ledger) -> Arrays:
    """All contents of ``ledger`` as arrays."""
    with ledger._lock:
        entries = list(ledger._entries.items())
        counts = ledger._counts
        scalars = [ledger._step, ledger._floor, ledger._next, counts.used, counts.dropped]
    turns = [entry.turn for _, entry in entries]
    seeds = [turn.seed for turn in turns]
    return {
        "scalars": np.array(scalars, np.int64),
        "keys": keys_array([entry.key for _, entry in entries]),
        "numbers": np.array([number for number, _ in entries], np.int64),
        "steps": np.array([entry.step for _, entry in entries], np.int64),
        "ranks": np.array([entry.rank for _, entry in entries], np.uint64),
        "emitted": np.array([entry.emitted for _, entry in entries], bool),
        "trained": np.array([entry.trained for _, entry in entries], bool),
        "seeded": np.array([seed is not None for seed in seeds], bool),
        "seeds": np.array([0 if seed is None else seed for seed in seeds], np.uint64),
        "versions": np.array([turn.version for turn in turns], np.int64),
        "rooms": np.array([turn.room for turn in turns], np.int64),
        "stopped": np.array([turn.stopped for turn in turns], bool),
        "lengths": np.array([len(turn.tokens) for turn in turns], np.int64),
        "widths": np.array([turn.top_ids.shape[1] for turn in turns], np.int64),
        "tokens": _joined([turn.tokens for turn in turns], np.int32),
        "logprobs": _joined([turn.logprobs for turn in turns], np.float32),
        "top_ids": _joined([turn.top_ids for turn in turns], np.int32),
        "top_logprobs": _joined([turn.top_logprobs for turn in turns], np.float32),
    }


def fill_ledger(ledger: Ledger, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Replace the contents of ``ledger`` by those that ``ledger_arrays`` returned.

    If it has less room than the saved one, the turns that would have been dropped there go.
    """
    keys = array_keys(arrays["keys"])
    ends = arrays["lengths"].cumsum()
    top_ends = (arrays["lengths"] * arrays["widths"]).cumsum()
    with ledger._lock:
        ledger._entries.clear()
        ledger._by_key.clear()
        ledger._by_step.clear()
        counts = ledger._counts
        ledger._step, ledger._floor, ledger._next, counts.used, counts.dropped = arrays["scalars"].tolist()
        counts.tokens = counts.charged = 0
        for i, key in enumerate(keys):
            length, width = int(arrays["lengths"][i]), int(arrays["widths"][i])
            some = slice(int(ends[i]) - length, int(ends[i]))
            tops = slice(int(top_ends[i]) - length * width, int(top_ends[i]))
            turn = StoredTurn(
                tokens=arrays["tokens"][some].copy(),
                logprobs=arrays["logprobs"][some].copy(),
                top_ids=arrays["top_ids"][tops].reshape(length, width).copy(),
                top_logprobs=arrays["top_logprobs"][tops].reshape(length, width).copy(),
                seed=int(arrays["seeds"][i]) if arrays["seeded"][i] else None,
                version=int(arrays["versions"][i]),
                room=int(arrays["rooms"][i]),
                stopped=bool(arrays["stopped"][i]),
            )
            entry = _Entry(
                key=key,
                turn=turn,
                step=int(arrays["steps"][i]),
                rank=int(arrays["ranks"][i]),
                emitted=bool(arrays["emitted"][i]),
                trained=bool(arrays["trained"][i]),
            )
            ledger._hold(int(arrays["numbers"][i]), entry)
        while counts.charged > ledger.max_tokens:
            ledger._drop()


def keys_array(keys: Sequence[Hashable]) -> NDArray[np.uint8]:
    """Tuples of numbers as the bytes of a JSON text."""
    return np.frombuffer(json.dumps(keys).encode(), np.uint8)


def array_keys(array: NDArray[np.uint8]) -> list[tuple[float, ...]]:
    """The tuples of ``keys_array``.

    >>> array_keys(keys_array([(1 << 63, 0.5), (2,)]))
    [(9223372036854775808, 0.5), (2,)]
    """
    return [tuple(key) for key in json.loads(array.tobytes())]


def _joined(parts: Sequence[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *(part.reshape(-1) for part in parts)])
