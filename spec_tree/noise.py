"""Uniform noise that depends on a seed and a position, and on nothing else.

A sampler that draws token ``n`` of a request with ``uniform(seed, n)`` says the
same whatever the batch around it, the order of the requests, or how many tokens
a step verifies. The mixing is the finaliser of SplitMix64 (Steele, Lea and
Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), applied to
the seed and once more to the seed's value plus the position's. It is fast and
well mixed, and no cryptography.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HALF = 2.0**-53


def uniform(seeds: NDArray[np.uint64] | NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number per pair of seed and position, strictly between 0 and 1.

    Args:
        seeds: 64-bit integers; negative ones count as their two's complement.
        positions: 64-bit integers, broadcast against ``seeds``.

    Returns:
        Odd multiples of 2**-53, in the broadcast shape.
    """
    with np.errstate(over="ignore"):
        stream = _mix(np.asarray(seeds).astype(np.uint64) + _GOLDEN)
        word = _mix(stream + _GOLDEN * np.asarray(positions).astype(np.uint64))
    fraction = (word >> np.uint64(12)).astype(np.float64)
    return (2.0 * fraction + 1.0) * _HALF


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit words in which every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
