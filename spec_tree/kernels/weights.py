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

_COUNTED = 40.0  #: votes that the prior share of a kind and length counts as


def first_weights() -> Weights:
    """Return the fitted weights, which contain no weight of a particular token."""
    prior = _prior()
    weights = np.zeros(1, WEIGHTS)
    tried = np.minimum(prior["tried"], _COUNTED)
    weights["tried"][..., 0] = tried
    weights["tried"][..., 1] = tried * prior["share"]
    for name in ("scale", "inner", "bias", "outer"):
        weights[name] = prior[name]
    # In Python: compiling a kernel for this one call takes longer than running it.
    settle_odds.py_func(weights.view(np.recarray)[0])
    return weights


def parts(weights: Weights) -> dict[str, NDArray[Any]]:
    """Return the fields as views by name; a scalar has shape (1,)."""
    assert WEIGHTS.names is not None
    return {name: weights[name] if weights[name].ndim == 1 else weights[name][0] for name in WEIGHTS.names}


@cache
def _prior() -> dict[str, NDArray[Any]]:
    text = files("turntree.spec_tree.kernels").joinpath("weights.json").read_text()
    return {name: np.array(values) for name, values in json.loads(text).items()}
