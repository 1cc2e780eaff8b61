"""Sampling by a race of exponential clocks in one Triton kernel: the token with the smallest ``-log(u) / weight`` wins.

One launch samples all rows, reads the logits once, and writes only the winners. Each program samples one row, block by
block, and keeps the earliest clock so far. u is a uniform number hashed from seed, position and token. As
``-log(u) >= 1 - u``, most blocks are ruled out without a logarithm.

The noise is bit-identical to that of ``turntree.spec_tree.rules.noise``: the same float64 operations in the same order,
unfused (``enable_fp_fusion``). For probabilities the winner is that of ``race_by_tensors``. For logits the weights are
``exp(logit - highest)`` in float64, which rounds less than a float32 softmax. A row's winner depends on that row alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from turntree.agents.engines.drafting import noise

_GOLDEN = tl.constexpr(noise.GOLDEN)
_FIRST = tl.constexpr(noise.FIRST)
_SECOND = tl.constexpr(noise.SECOND)
_ROOT_HALF = tl.constexpr(noise.ROOT_HALF)
_LN2 = tl.constexpr(noise.LN2)
_A0, _A1, _A2, _A3, _A4, _A5, _A6 = map(tl.constexpr, noise.ATANH)
_GRID = tl.constexpr(2.0**-53)
_SURE = tl.constexpr(1.0 - 1e-4)  #: factor that keeps the bound 1 - u safe against the rounding of float32 weights
LOWEST = tl.constexpr(-3.4028234663852886e38)  #: lowest float32; minus infinity would give NaN in differences
BLOCK = 2048  #: tokens of a row that are read at once


@triton.jit
def _mix(x):  # the hash of SplitMix64
    x = (x ^ (x >> 30)) * _FIRST
    x = (x ^ (x >> 27)) * _SECOND
    return x ^ (x >> 31)


@triton.jit
def stream(seed, position):
    """Return the hash state that all tokens at a seed and position (both uint64) start from."""
    return _mix(_mix(seed + _GOLDEN) + _GOLDEN * position) + _GOLDEN


@triton.jit
def uniform(begin, tokens):
    """Return odd multiples of 2**-53 in (0, 1), float64; ``begin`` is a result of ``stream``, ``tokens`` are uint64."""
    word = _mix(begin + _GOLDEN * tokens)
    return (2.0 * (word >> 12).to(tl.int64).to(tl.float64) + 1.0) * _GRID


@triton.jit
def minus_log(u):
    bits = u.to(tl.int64, bitcast=True)
    exponent = (bits - _ROOT_HALF) >> 52
    mantissa = (bits - (exponent << 52)).to(tl.float64, bitcast=True)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = square * _A0 + _A1
    series = series * square + _A2
    series = series * square + _A3
    series = series * square + _A4
    series = series * square + _A5
    series = series * square + _A6
    return -(exponent.to(tl.float64) * _LN2 + s * (series * square + 2.0))


@triton.jit
def race_block(begin, start, tokens, value, highest, bound, earliest, winner, LOGITS: tl.constexpr):
    """Return the earliest clock (float64) and its token (int64), including one more block.

    ``bound`` has the block's weights, float64; with LOGITS they were rounded to float32, and ``value`` has the logits.
    ``begin`` is the row's hash state, ``start`` the block's first token, ``highest`` the highest logit so far.
    """
    u = uniform(begin, tokens.to(tl.uint64))
    # While ``earliest`` is infinite, no token is lost: infinity times 0 is NaN, and a comparison with NaN is false.
    lost = (1.0 - u) * _SURE > earliest * bound
    if tl.min(lost.to(tl.int32), 0) == 0:
        weight = bound
        if LOGITS:
            weight = tl.exp(value.to(tl.float64) - highest.to(tl.float64))
        first, offset = tl.min(minus_log(u) / weight, 0, return_indices=True)
        if first < earliest:
            earliest = first
            winner = start + offset.to(tl.int64)
    return earliest, winner


@triton.jit(do_not_specialize_on_alignment=("seeds", "positions", "winners"))
def _race(values, seeds, positions, winners, stride, size, LOGITS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    begin = stream(tl.load(seeds + row).to(tl.uint64, bitcast=True), tl.load(positions + row).to(tl.uint64))
    earliest = tl.full((), float("inf"), tl.float64)
    winner = tl.full((), 0, tl.int64)
    highest = tl.full((), LOWEST, tl.float32)
    for start in range(0, size, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        if LOGITS:
            value = tl.load(values + row * stride + tokens, mask=tokens < size, other=float("-inf")).to(tl.float32)
            before = highest
            highest = tl.maximum(highest, tl.max(value, 0))
            # Clocks use weights exp(logit - highest), so rescale ``earliest`` when ``highest`` grows.
            earliest = earliest * tl.exp(highest.to(tl.float64) - before.to(tl.float64))
            bound = tl.exp(value - highest).to(tl.float64)
        else:
            value = tl.load(values + row * stride + tokens, mask=tokens < size, other=0.0)
            bound = value.to(tl.float64)
        earliest, winner = race_block(begin, start, tokens, value, highest, bound, earliest, winner, LOGITS)
    tl.store(winners + row, winner)


def race_rows(values: Tensor, seeds: Tensor, positions: Tensor, *, logits: bool) -> Tensor:
    """Draw one token per row, int64, shape (rows,).

    ``values`` are probabilities, or ``logits`` after all transforms, of any floating dtype. ``seeds`` (bits of the
    unsigned seed) and ``positions`` (in the turn) are int64 on the same device.
    """
    rows, size = values.shape
    winners = torch.empty(rows, dtype=torch.int64, device=values.device)
    values = values if values.stride(-1) == 1 else values.contiguous()
    if rows:
        _race[(rows,)](
            values,
            seeds,
            positions,
            winners,
            values.stride(0),
            size,
            LOGITS=logits,
            BLOCK=BLOCK,
            num_warps=8,
            enable_fp_fusion=False,
        )
    return winners
