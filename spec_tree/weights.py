"""The weights that a forest starts from.

They were fitted on recorded turns of several models and tasks, without any
weight that knows a token; ``benchmarks/fit_weights.py`` makes the file.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.layout import HASHED, HIDDEN, INPUTS, KINDS, LENGTHS, TABLES, Weights
from turntree.spec_tree.learning import settle_odds

_COUNTED = 40.0
"""Votes that the share of a kind and length starts with."""


def first_weights() -> Weights:
    """Weights that have seen none of this forest's verdicts."""
    prior = _prior()
    weights = Weights(
        odds=np.zeros((KINDS, LENGTHS), np.float32),
        tried=np.zeros((KINDS, LENGTHS, 2), np.float64),
        hashed=np.zeros((TABLES, HASHED), np.float32),
        scale=np.zeros((1,), np.float32),
        inner=np.zeros((INPUTS, HIDDEN), np.float32),
        bias=np.zeros((HIDDEN,), np.float32),
        outer=np.zeros((HIDDEN,), np.float32),
        updates=np.zeros((1,), np.int64),
    )
    tried = np.minimum(prior["tried"], _COUNTED)
    weights.tried[..., 0] = tried
    weights.tried[..., 1] = tried * prior["share"]
    for name in ("scale", "inner", "bias", "outer"):
        getattr(weights, name)[:] = prior[name]
    settle_odds.py_func(weights)  # a compiled one of its own would take longer to make than to run this
    return weights


@cache
def _prior() -> dict[str, NDArray[Any]]:
    text = files("turntree.spec_tree").joinpath("weights.json").read_text()
    return {name: np.array(values) for name, values in json.loads(text).items()}
