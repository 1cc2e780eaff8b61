"""Conversion of a ledger to arrays and back, for snapshots.

Keys are tuples of numbers. The arrays include the running step, the highest dropped rank and the counts, so a restored
ledger uses and drops the same turns as the saved ledger would have.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from turntree.spec_tree.rules.ledger import Ledger, StoredTurn, _Entry

Arrays = dict[str, NDArray[Any]]

#: dtype and number of dimensions of each array of ``ledger_arrays``
KINDS: dict[str, tuple[DTypeLike, int]] = {
    "scalars": (np.int64, 1),
    "keys": (np.uint8, 1),
    "numbers": (np.int64, 1),
    "steps": (np.int64, 1),
    "ranks": (np.uint64, 1),
    "emitted": (np.bool_, 1),
    "trained": (np.bool_, 1),
    "seeded": (np.bool_, 1),
    "seeds": (np.uint64, 1),
    "versions": (np.int64, 1),
    "token_limits": (np.int64, 1),
    "stopped": (np.bool_, 1),
    "lengths": (np.int64, 1),
    "widths": (np.int64, 1),
    "tokens": (np.int32, 1),
    "logprobs": (np.float32, 1),
    "top_ids": (np.int32, 1),
    "top_logprobs": (np.float32, 1),
}
_OF_TURNS = tuple(KINDS)[2:14]
_MOST = 1 << 62  #: greatest count; sums that start from it still fit into 64 bits
_MOST_NUMBERS = 32
_MOST_KEY = 1024  #: characters of a key


def ledger_arrays(ledger: Ledger) -> Arrays:
    with ledger._lock:
        entries = list(ledger._entries.items())
        counts = ledger._counts
        scalars = [ledger._step, ledger._floor, ledger._next, counts.used, counts.dropped]
    turns = [entry.turn for _, entry in entries]
    columns: dict[str, list[Any]] = {
        "scalars": scalars,
        "numbers": [number for number, _ in entries],
        "steps": [entry.step for _, entry in entries],
        "ranks": [entry.rank for _, entry in entries],
        "emitted": [entry.emitted for _, entry in entries],
        "trained": [entry.trained for _, entry in entries],
        "seeded": [turn.seed is not None for turn in turns],
        "seeds": [turn.seed or 0 for turn in turns],
        "versions": [turn.version for turn in turns],
        "token_limits": [turn.token_limit for turn in turns],
        "stopped": [turn.stopped for turn in turns],
        "lengths": [len(turn.tokens) for turn in turns],
        "widths": [turn.top_ids.shape[1] for turn in turns],
    }
    arrays = {name: np.array(values, KINDS[name][0]) for name, values in columns.items()}
    for name in ("tokens", "logprobs", "top_ids", "top_logprobs"):
        kind = KINDS[name][0]
        arrays[name] = np.concatenate([np.zeros(0, kind), *(getattr(turn, name).reshape(-1) for turn in turns)])
    return arrays | {"keys": keys_array([entry.key for _, entry in entries])}


def fill_ledger(ledger: Ledger, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Replace the contents of ``ledger`` by arrays from ``ledger_arrays``, with the dtypes of ``KINDS``.

    If ``ledger`` has a smaller bound than the saved ledger, turns are dropped in the usual order.

    Raises:
        ValueError: If the arrays are inconsistent; the ledger stays unchanged.
    """
    keys = array_keys(arrays["keys"], len(arrays["numbers"]))
    _check(arrays)
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
                token_limit=int(arrays["token_limits"][i]),
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


def _check(arrays: Mapping[str, NDArray[Any]]) -> None:
    turns, tokens, tops = len(arrays["numbers"]), len(arrays["tokens"]), len(arrays["top_ids"])
    lengths, widths, scalars = arrays["lengths"], arrays["widths"], arrays["scalars"]
    if any(len(arrays[name]) != turns for name in _OF_TURNS) or len(scalars) != 5:
        raise ValueError("expected arrays of the ledger with one entry per turn")
    step, floor, following, *counts = scalars.tolist()
    if floor < -1 or not all(0 <= count <= _MOST for count in (step, following, *counts)):
        raise ValueError(f"the ledger's counts must be from 0 to {_MOST}")
    for name, least, most in (
        ("lengths", 1, tokens),
        ("widths", 0, tops),
        ("token_limits", 1, _MOST),
        ("steps", 0, step),
        ("numbers", 0, following - 1),
        ("tokens", 0, 2**31 - 1),
    ):
        if turns and (int(arrays[name].min()) < least or int(arrays[name].max()) > most):
            raise ValueError(f"{name} of the ledger must be from {least} to {most}")
    # Sum as Python integers, which cannot overflow.
    needed = sum(length * width for length, width in zip(lengths.tolist(), widths.tolist(), strict=True))
    if (sum(lengths.tolist()), needed) != (tokens, tops) or len(np.unique(arrays["numbers"])) < turns:
        raise ValueError("the ledger's arrays do not belong to the same turns")
    if len(arrays["logprobs"]) != tokens or len(arrays["top_logprobs"]) != tops:
        raise ValueError("expected one log-probability per token of the ledger")
    if not (lengths <= arrays["token_limits"]).all():
        raise ValueError("a turn of the ledger is longer than its token limit")


def keys_array(keys: Sequence[Hashable]) -> NDArray[np.uint8]:
    """Encode tuples of numbers as the bytes of a JSON text."""
    return np.frombuffer(json.dumps(keys).encode(), np.uint8)


def array_keys(array: NDArray[np.uint8], count: int) -> list[tuple[float, ...]]:
    """Decode the ``count`` tuples of ``keys_array``, of at most 32 numbers each.

    Raises:
        ValueError: If the array holds anything else.

    >>> array_keys(keys_array([(1 << 63, 0.5), (2,)]), 2)
    [(9223372036854775808, 0.5), (2,)]
    """
    text = array.tobytes()
    # Check before parsing: nested or very long lists take many times the memory of their text.
    if text.count(b"[") != count + 1 or text.count(b",") > _MOST_NUMBERS * count or len(text) > _MOST_KEY * (count + 1):
        raise ValueError(f"expected {count} keys")
    keys = json.loads(text)
    if len(keys) != count or not all(type(key) is list and {*map(type, key)} <= {int, float} for key in keys):
        raise ValueError("keys must be tuples of numbers")
    return [tuple(key) for key in keys]
