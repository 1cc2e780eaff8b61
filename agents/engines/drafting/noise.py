"""The token noise of ``turntree.spec_tree.rules.noise`` in PyTorch, bit-identical on the CPU and on a GPU.

The operations and their order are those of the NumPy version. Each is a PyTorch call of its own: a fused operation
would round differently.
"""

from __future__ import annotations

import torch
from torch import Tensor

from turntree.spec_tree import splitmix
from turntree.spec_tree.rules import noise

GOLDEN, FIRST, SECOND = splitmix.GOLDEN, splitmix.FIRST, splitmix.SECOND
ROOT_HALF, LN2, ATANH = noise.ROOT_HALF, noise.LN2, noise.ATANH


def exponential(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Return one standard exponential number per seed, position and token, float64, in the broadcast shape.

    Bit for bit equal to ``turntree.spec_tree.rules.noise.exponential``. All arguments are int64; ``seeds`` has the bits
    of the unsigned seeds.
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


def _mix(x: Tensor) -> Tensor:  # the hash of SplitMix64
    x = (x ^ _shifted(x, 30)) * _signed(FIRST)
    x = (x ^ _shifted(x, 27)) * _signed(SECOND)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    # A right shift of unsigned words: PyTorch's int64 is signed, so clear the copies of the sign bit.
    return (x >> by) & ((1 << (64 - by)) - 1)


def _signed(word: int) -> int:  # the int64 with the bits of an unsigned word
    return word - (1 << 64) if word >= 1 << 63 else word
