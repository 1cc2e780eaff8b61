"""Initial weights of a forest, fitted on recorded turns by ``benchmarks/fit_weights.py``."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.layout import WEIGHTS, Weights
from turntree.spec_tree.kernels.learning import settle_odds

_COUNTED = 40.0  #: weight, in votes, of the prior share of right votes per kind and length


def first_weights() -> Weights:
    """Return the fitted weights; the weights of particular tokens start at 0."""
    prior = _prior()
    weights = np.zeros(1, WEIGHTS)
    tried = np.minimum(prior["tried"], _COUNTED)
    weights["tried"][..., 0] = tried
    weights["tried"][..., 1] = tried * prior["share"]
    for name in ("scale", "inner", "bias", "outer"):
        weights[name] = prior[name]
    # Run in Python: compiling a kernel for this one call would take longer.
    settle_odds.py_func(weights.view(np.recarray)[0])
    return weights


def parts(weights: Weights) -> dict[str, NDArray[Any]]:
    """Return the fields of the record as array views by name; a scalar has shape (1,)."""
    assert WEIGHTS.names is not None
    return {name: weights[name] if weights[name].ndim == 1 else weights[name][0] for name in WEIGHTS.names}


@cache
def _prior() -> dict[str, NDArray[Any]]:
    text = files("turntree.spec_tree.kernels").joinpath("weights.json").read_text()
    return {name: np.array(values) for name, values in json.loads(text).items()}
