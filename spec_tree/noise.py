"""Counter-based noise: a uniform that depends on a seed and a position, and on nothing else.

The value is the same whatever the batch, the order of calls or the machine, so
that a turn sampled with a seed can be sampled again. The mixer is splitmix64
(Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014),
applied to the seed and, keyed by the result, to the position.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def uniform(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number in (0, 1) for each pair.

    Args:
        seeds: 64-bit seeds, shape (n,).
        positions: Non-negative counters, shape (n,).

    Returns:
        Odd multiples of 2**-53, strictly inside the interval, shape (n,).
    """
    with np.errstate(over="ignore"):
        key = _mix(seeds.astype(np.uint64) + _GAMMA)
        bits = _mix(key + (positions.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    return ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
