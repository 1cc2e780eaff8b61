"""Logarithm and logistic function to about six digits, in a few instructions and without a call.

A call to the C library's takes longer by what it does to the caller, whose registers are all put away for it.
"""

from __future__ import annotations

import math

import numpy as np

from turntree.spec_tree.kernels.compiled import float32, inlined_fast, int32
from turntree.spec_tree.kernels.instructions import as_bits, from_bits

_ROOT_HALF = np.float32(math.sqrt(0.5)).view(np.int32)
_LN2, _LOG2E = np.float32(math.log(2.0)), np.float32(1.0 / math.log(2.0))
_BIAS, _MANTISSA = np.int32(127), np.int32(23)


@inlined_fast
def logarithm(x: float) -> float:
    """The natural logarithm of a normal positive float32.

    ``x = 2 ** e * m`` with ``m`` around 1, and ``log(m) = 2 artanh(s)``, ``s = (m - 1) / (m + 1)``, by its series.
    """
    e = int32(int32(as_bits(x) - _ROOT_HALF) >> _MANTISSA)
    m = from_bits(int32(as_bits(x) - int32(e << _MANTISSA)))
    s = (m - float32(1.0)) / (m + float32(1.0))
    q = s * s
    series = float32(1.0) + q * (float32(1 / 3) + q * (float32(1 / 5) + q * float32(1 / 7)))
    result: float = float32(e) * _LN2 + float32(2.0) * s * series
    return result


@inlined_fast
def logistic(x: float) -> float:
    """``1 / (1 + exp(-x))`` of a float32, with ``exp(-x) = 2 ** n * exp(r)``, ``|r| <= log(2) / 2``, by its series."""
    t = min(max(-x, float32(-80.0)), float32(80.0))
    n = int32(t * _LOG2E + float32(1000.5)) - int32(1000)
    r = t - float32(n) * _LN2
    series = float32(1 / 6) + r * (float32(1 / 24) + r * (float32(1 / 120) + r * float32(1 / 720)))
    series = float32(1.0) + r * (float32(1.0) + r * (float32(0.5) + r * series))
    result: float = float32(1.0) / (float32(1.0) + series * from_bits(int32((n + _BIAS) << _MANTISSA)))
    return result
