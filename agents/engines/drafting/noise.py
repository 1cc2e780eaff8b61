"""The token noise of ``turntree.spec_tree.rules.noise`` in PyTorch, with the same bits on the CPU and on a GPU.

Invariant: the same operations in the same order as there, each a PyTorch call of
its own, so that nothing can be fused. PyTorch's integers are signed: products
wrap alike, and the sign bits that a right shift brings in are masked.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
ROOT_HALF = 0x3FE6A09E667F3BCD
LN2 = 0.6931471805599453
ATANH = (
    0.14616449685043406,
    0.15331721600556042,
    0.18182889125261723,
    0.2222221113479508,
    0.28571428625975487,
    0.39999999999899505,
    0.666666666666667,
)


def exponential(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """One standard exponential number per seed, position and token, bit for bit that of
    ``turntree.spec_tree.rules.noise.exponential``.

    Args:
        seeds: int64; the bits of the unsigned seed.
        positions: int64, broadcast against ``seeds`` and ``tokens``.
        tokens: int64, broadcast against ``seeds`` and ``positions``.

    Returns:
        float64, in the broadcast shape.
    """
    stream = _mix(seeds + _signed(GOLDEN))
    word = _mix(stream + positions * _signed(GOLDEN))
    word = _mix(word + (tokens + 1) * _signed(GOLDEN))
    return _minus_log((2.0 * _shifted(word, 12).double() + 1.0) * 2.0**-53)


def _minus_log(u: Tensor) -> Tensor:
    bits = u.view(torch.int64)
    exponent = (bits - ROOT_HALF) >> 52
    mantissa = (bits - (exponent << 52)).view(torch.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = torch.full_like(square, ATANH[0])
    for coefficient in ATANH[1:]:
        series = series * square
        series = series + coefficient
    logarithm = s * (series * square + 2.0)
    return -(exponent.double() * LN2 + logarithm)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(SECOND)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Right shift that fills with zeros."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
