"""Sampling by a race of exponential clocks: the token with the smallest clock ``E / p`` wins.

Here p is the token's probability, and E = -log(u) is exponential noise that depends only on seed, position in the
turn, and token. So seed and policy determine the sampled token, and similar policies mostly sample the same token
(Gumbel coupling). The race runs in a compiled loop on the CPU and in one Triton kernel on a GPU (``race_kernel``),
or in PyTorch operations if Triton is missing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from turntree.agents.engines.drafting import noise

_GOLDEN = np.uint64(noise.GOLDEN)
_FIRST = np.uint64(noise.FIRST)
_SECOND = np.uint64(noise.SECOND)
_12, _27, _30, _31 = (np.uint64(n) for n in (12, 27, 30, 31))
_ROOT_HALF = np.int64(noise.ROOT_HALF)
_MANTISSA = np.int64(52)
_ATANH = noise.ATANH
_LN2 = noise.LN2
_SURE = 1.0 - 1e-9  #: factor that keeps the bound -log(u) >= 1 - u safe: its margin is far above the rounding error
_BLOCK = 128  #: tokens hashed together before any is compared
with np.errstate(over="ignore"):
    _STEPS = _GOLDEN * np.arange(_BLOCK, dtype=np.uint64)
AT_ONCE = 1 << 22  #: maximum clocks in memory at once without the compiled loop
Seeds = NDArray[np.uint64] | Tensor  #: seeds, or their bits as int64 on any device, shape (rows,)


def race(probabilities: Tensor, seeds: Seeds, positions: NDArray[np.int64] | Tensor) -> Tensor:
    """Draw one token per row, int64, shape (rows,).

    ``probabilities``, float32 or float64, need not be normalised. ``positions`` count in the turn. Seeds and positions
    may be on any device.
    """
    if probabilities.device.type == "cpu":
        winners = np.empty(len(probabilities), np.int64)
        rows_p = probabilities.contiguous().numpy()
        words = _bits(seeds).numpy().view(np.uint64)
        _race(rows_p, rows_p.view(f"i{rows_p.itemsize}"), words, np.asarray(positions, np.int64), winners)
        return torch.from_numpy(winners)
    kernel = kernel_on(probabilities.device.type)
    if kernel is None:
        return race_by_tensors(probabilities, seeds, positions)
    return kernel(probabilities, *_on(probabilities.device, seeds, positions), logits=False)


def race_of_logits(logits: Tensor, seeds: Seeds, positions: NDArray[np.int64] | Tensor) -> Tensor:
    """Draw as ``race`` does, from logits after all transforms, shape (rows, vocabulary)."""
    kernel = kernel_on(logits.device.type)
    if kernel is None:
        return race(logits.softmax(-1, dtype=torch.float32), seeds, positions)
    return kernel(logits, *_on(logits.device, seeds, positions), logits=True)


@cache
def kernel_on(kind: str) -> Callable[..., Tensor] | None:
    if kind != "cuda" or find_spec("triton") is None:
        return None
    from turntree.agents.engines.drafting.race_kernel import race_rows

    return race_rows


def race_by_tensors(probabilities: Tensor, seeds: Seeds, positions: NDArray[np.int64] | Tensor) -> Tensor:
    """Draw as ``race`` does, by PyTorch operations on any device."""
    seed, position = (one[:, None] for one in _on(probabilities.device, seeds, positions))
    tokens = torch.arange(probabilities.shape[-1], device=probabilities.device)[None]
    rows = max(1, AT_ONCE // len(tokens[0]))
    parts = [
        (noise.exponential(seed[i : i + rows], position[i : i + rows], tokens) / probabilities[i : i + rows]).argmin(-1)
        for i in range(0, len(probabilities), rows)
    ]
    return torch.cat(parts)


def _on(device: torch.device, seeds: Seeds, positions: NDArray[np.int64] | Tensor) -> tuple[Tensor, Tensor]:
    # seeds and positions as int64 on the device, copied without waiting for the device
    turn_positions = torch.as_tensor(positions).long()
    return _bits(seeds).to(device, non_blocking=True), turn_positions.to(device, non_blocking=True)


def _bits(seeds: Seeds) -> Tensor:
    return seeds if isinstance(seeds, Tensor) else torch.from_numpy(seeds.astype(np.uint64).view(np.int64))


@njit(inline="always")
def _mix(x: Any) -> Any:  # the hash of SplitMix64
    x = (x ^ (x >> _30)) * _FIRST
    x = (x ^ (x >> _27)) * _SECOND
    return x ^ (x >> _31)


@njit(inline="always")
def _uniform(word: Any) -> Any:  # an odd multiple of 2**-53 in (0, 1)
    return (2.0 * np.float64(np.int64(_mix(word) >> _12)) + 1.0) * 2.0**-53


@njit(inline="always")
def _clock(u: Any, real: Any, bits: Any) -> Any:
    # Return -log(u). ``real`` and ``bits`` are one working number, viewed as a float and as its bits.
    real[0] = u
    exponent = (bits[0] - _ROOT_HALF) >> _MANTISSA
    bits[0] -= exponent << _MANTISSA
    s = (real[0] - 1.0) / (real[0] + 1.0)
    square = s * s
    series = _ATANH[0]
    for coefficient in _ATANH[1:]:
        series = series * square + coefficient
    return -(np.float64(exponent) * _LN2 + s * (series * square + 2.0))


@njit(inline="always")
def _most(words: Any) -> Any:
    # Start the race at the likeliest token: against its early clock, few others need a logarithm.
    largest = words[0]
    for word in words:
        largest = max(largest, word)
    for token in range(len(words)):
        if words[token] == largest:
            return token
    return 0


@njit(nogil=True, cache=True)
def _race(p: Any, words: Any, seeds: Any, positions: Any, winners: Any) -> None:
    # ``words`` are the bits of p. As p >= 0, they have the order of p as integers, which compare faster than floats.
    real = np.empty(1, np.float64)
    bits = real.view(np.int64)
    for row in range(p.shape[0]):
        word = _mix(_mix(seeds[row] + _GOLDEN) + _GOLDEN * np.uint64(positions[row])) + _GOLDEN
        row_p = p[row]
        winner = _most(words[row])
        first = _clock(_uniform(word + _GOLDEN * np.uint64(winner)), real, bits) / np.float64(row_p[winner])
        for start in range(0, p.shape[1], _BLOCK):
            block = row_p[start : start + _BLOCK]
            ahead = word + _GOLDEN * np.uint64(start)
            # First pass: count the tokens that could win by -log(u) >= 1 - u, without a logarithm or a branch.
            hopeful = np.int64(0)
            for i in range(len(block)):
                hopeful += np.int64((1.0 - _uniform(ahead + _STEPS[i])) * _SURE <= first * np.float64(block[i]))
            if hopeful == 0:
                continue
            # Second pass, in few blocks: take the logarithms of these tokens. Ties go to the smaller token.
            for i in range(len(block)):
                u, mass = _uniform(ahead + _STEPS[i]), np.float64(block[i])
                if (1.0 - u) * _SURE > first * mass:
                    continue
                clock = _clock(u, real, bits) / mass
                if clock < first or (clock == first and start + i < winner):
                    winner, first = start + i, clock
        winners[row] = winner
