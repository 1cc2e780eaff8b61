"""Noise that depends only on a seed and a position.

``uniform`` gives one number per seed and position (a coin, for accept or reject). ``exponential`` gives one number E
per seed, position and token, for a race of exponential clocks: the token with the smallest ``E / p`` wins. This equals
``argmax log p + g`` with the Gumbel noise ``g = -log E``. Such a sampler draws the same token ``n`` of a request in
any batch, in any order of requests, and with any number of tokens verified per step. Two similar policies mostly
draw the same token from the same seed.

The mixing is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014), applied to the seed, then to the position, then to the token. Not cryptographic.

Invariant: every value is computed by 64-bit integer operations and single float64 additions, multiplications and
divisions, which IEEE 754 rounds in one way. Another implementation that performs these operations in the same order
gives the same bits, unless its compiler fuses a multiplication and an addition.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.splitmix import FIRST, GOLDEN, SECOND

_GOLDEN = np.uint64(GOLDEN)
_WORD = 1 << 64
_FIRST_INVERSE, _SECOND_INVERSE = pow(FIRST, -1, _WORD), pow(SECOND, -1, _WORD)
_HALF = 2.0**-53
ROOT_HALF = 0x3FE6A09E667F3BCD  #: bits of sqrt(1/2); mantissas lie between sqrt(1/2) and sqrt(2)
LN2 = 0.6931471805599453
#: (2 atanh(s) / s - 2) / s**2 as a polynomial in s**2, highest power first: a Chebyshev fit for mantissas between
#: sqrt(1/2) and sqrt(2), at most 5e-18 from the logarithm
ATANH = (
    0.14616449685043406,
    0.15331721600556042,
    0.18182889125261723,
    0.2222221113479508,
    0.28571428625975487,
    0.39999999999899505,
    0.666666666666667,
)

Seeds = NDArray[np.uint64] | NDArray[np.int64]


def uniform(seeds: Seeds, positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return one number per pair of seed and position, an odd multiple of 2**-53 between 0 and 1.

    Arguments are 64-bit integers and broadcast; negative seeds count as their two's complement.
    """
    return _fraction(_word(seeds, positions))


def exponential(seeds: Seeds, positions: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return one standard exponential number per seed, position and token, between 1.1e-16 and 36.8.

    Arguments are as in ``uniform``. ``argmin exponential(...) / p`` is a draw from p. Values are negative logarithms of
    odd multiples of 2**-53, within 4 units in the last place. Because of this grid, the distribution of a draw differs
    from p by at most 2**-53 per token of the vocabulary, in total variation.
    """
    word = _word(seeds, positions)
    with np.errstate(over="ignore"):
        word = _mix(word + _GOLDEN * (np.asarray(tokens).astype(np.uint64) + np.uint64(1)))
    return _minus_log(_fraction(word))


def _word(seeds: Seeds, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        stream = _mix(np.asarray(seeds).astype(np.uint64) + _GOLDEN)
        return _mix(stream + _GOLDEN * np.asarray(positions).astype(np.uint64))


def _fraction(word: NDArray[np.uint64]) -> NDArray[np.float64]:
    # the upper 52 bits as an odd multiple of 2**-53
    return (2.0 * (word >> np.uint64(12)).astype(np.float64) + 1.0) * _HALF


def _minus_log(u: NDArray[np.float64]) -> NDArray[np.float64]:
    # u = 2**e * m, s = (m - 1) / (m + 1), log(m) = 2 atanh(s)
    bits = np.asarray(u).view(np.int64)
    exponent = (bits - np.int64(ROOT_HALF)) >> np.int64(52)
    mantissa = (bits - (exponent << np.int64(52))).view(np.float64)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = np.full_like(square, ATANH[0])
    for coefficient in ATANH[1:]:
        series = series * square + coefficient
    logarithm = s * (series * square + 2.0)
    return -(exponent.astype(np.float64) * LN2 + logarithm)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # a bijection of 64-bit words in which every input bit reaches every output bit
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SECOND)
    return x ^ (x >> np.uint64(31))


def shifted_seed(seed: int, by: int) -> int:
    """Return the seed in [0, 2**64) whose noise at position ``n + by`` equals the noise of ``seed`` at ``n``.

    Some engines count a token's position in the context, whereas turntree counts it in the turn. Shift by the number of
    tokens before the turn. The mixing is a bijection, so the shift is exact.
    """
    stream = (_mixed((seed + GOLDEN) % _WORD) - by * GOLDEN) % _WORD
    return (_unmixed(stream) - GOLDEN) % _WORD


def _mixed(x: int) -> int:
    x = (x ^ x >> 30) * FIRST % _WORD
    x = (x ^ x >> 27) * SECOND % _WORD
    return x ^ x >> 31


def _unmixed(x: int) -> int:
    x = _unshifted(x, 31) * _SECOND_INVERSE % _WORD
    x = _unshifted(x, 27) * _FIRST_INVERSE % _WORD
    return _unshifted(x, 30)


def _unshifted(x: int, by: int) -> int:
    # solves y ^ y >> by == x for y
    original = x
    for _ in range(63 // by):
        original = x ^ original >> by
    return original
