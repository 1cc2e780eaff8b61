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

from turntree.spec_tree.kernels.layout import WEIGHTS, Weights
from turntree.spec_tree.kernels.learning import settle_odds

_COUNTED = 40.0
"""Votes that the share of a kind and length starts with."""


def first_weights() -> Weights:
    """Weights that have seen none of this forest's verdicts."""
    prior = _prior()
    weights = np.zeros(1, WEIGHTS)
    tried = np.minimum(prior["tried"], _COUNTED)
    weights["tried"][..., 0] = tried
    weights["tried"][..., 1] = tried * prior["share"]
    for name in ("scale", "inner", "bias", "outer"):
        weights[name] = prior[name]
    # a compiled one of its own would take longer to make than to run this
    settle_odds.py_func(weights.view(np.recarray)[0])
    return weights


def parts(weights: Weights) -> dict[str, NDArray[Any]]:
    """The fields by name, as views; a single number has shape (1,)."""
    assert WEIGHTS.names is not None
    return {name: weights[name] if weights[name].ndim == 1 else weights[name][0] for name in WEIGHTS.names}


@cache
def _prior() -> dict[str, NDArray[Any]]:
    text = files("turntree.spec_tree.kernels").joinpath("weights.json").read_text()
    return {name: np.array(values) for name, values in json.loads(text).items()}
