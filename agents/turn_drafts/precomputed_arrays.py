from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from turntree.agents.turn_drafts.precomputed_store import PrecomputedStore
from turntree.spec_tree.rules.ledger_arrays import array_keys, keys_array
from turntree.spec_tree.rules.seen_seeds import SeenSeeds

Arrays = dict[str, NDArray[Any]]

#: dtype and number of dimensions of each array of ``precomputed_arrays``
KINDS: dict[str, tuple[DTypeLike, int]] = {
    "keys": (np.uint8, 1),
    "seeds": (np.uint64, 1),
    "steps": (np.int64, 1),
    "lengths": (np.int64, 1),
    "tokens": (np.int32, 1),
    "used_seeds": (np.uint64, 1),
    "used_steps": (np.int64, 1),
    "shown": (np.uint64, 1),
    "trained": (np.uint8, 1),
}


def precomputed_arrays(store: PrecomputedStore) -> Arrays:
    """Return the contents of a store of precomputed turns as arrays, for a snapshot."""
    turns = list(store.turns())
    used = list(store.used_seeds())
    return {
        "keys": keys_array([key for key, _, _ in turns]),
        "seeds": np.array([seed for _, seed, _ in turns], np.uint64),
        "steps": np.array([made.step for _, _, made in turns], np.int64),
        "lengths": np.array([len(made.tokens) for _, _, made in turns], np.int64),
        "tokens": np.array([token for _, _, made in turns for token in made.tokens], np.int32),
        "used_seeds": np.array([seed for seed, _ in used], np.uint64),
        "used_steps": np.array([step for _, step in used], np.int64),
        "shown": np.array(sorted(store.shown), np.uint64),
        "trained": store.trained.table,
    }


def precomputed_from_arrays(arrays: Mapping[str, NDArray[Any]], *, max_tokens: int) -> PrecomputedStore:
    """Return the store whose contents ``precomputed_arrays`` returned, with capacity for ``max_tokens``.

    Raises:
        ValueError: If the arrays, which have the dtypes of ``KINDS``, are inconsistent.
    """
    lengths, tokens, turns = arrays["lengths"], arrays["tokens"], len(arrays["seeds"])
    if not len(arrays["steps"]) == len(lengths) == turns or len(arrays["used_seeds"]) != len(arrays["used_steps"]):
        raise ValueError("the arrays of precomputed turns do not have one entry a turn")
    if (
        lengths.min(initial=0) < 0
        or sum(lengths.tolist()) != len(arrays["tokens"])
        or arrays["tokens"].min(initial=0) < 0
    ):
        raise ValueError("the precomputed turns do not have the lengths that are given")
    store = PrecomputedStore(max_tokens=max_tokens, trained=SeenSeeds.of_table(arrays["trained"]))
    ends = lengths.cumsum().tolist()
    tokens = tokens.tolist()
    for key, seed, step, length, end in zip(
        array_keys(arrays["keys"], turns),
        arrays["seeds"].tolist(),
        arrays["steps"].tolist(),
        arrays["lengths"].tolist(),
        ends,
        strict=True,
    ):
        store.put(key, seed, tuple(tokens[end - length : end]), step=step)
    for seed, step in zip(arrays["used_seeds"].tolist(), arrays["used_steps"].tolist(), strict=True):
        store.use(seed, step)
    for seed in arrays["shown"].tolist():
        store.show(seed)
    return store
