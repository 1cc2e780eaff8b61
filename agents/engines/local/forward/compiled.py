"""Attention on the CPU in compiled loops: one call per layer, whatever slots the rows have.

A token's result depends on its own row alone: neither the rest of the batch nor the number of threads changes a bit
of it. Nothing is padded, gathered or masked; each token reads the columns of its slot in place.

A row is one request's new tokens. The loops attend for short rows, whose tokens see few columns in total. For longer
rows they only write keys and values; ``attention`` attends in segments (rows of nearby slots in one call), as it does
for all rows on other devices and in half precision.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import njit, types
from numba.extending import overload
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]

DTYPES = (torch.float32, torch.float64)  #: dtypes that the loops compute with
#: most columns that a row sees in total, over its tokens and the query heads of one key head; above, matrix products
#: are faster than the loops
MOST_SEEN = 3072
_SHARE = 1 << 20  #: minimum multiply-adds per thread
#: fastmath flags: sums may be reordered, but infinities and NaN are preserved
_REORDERED = {"reassoc", "contract", "arcp", "nsz"}
_OPTIONS: Any = {"fastmath": _REORDERED, "error_model": "numpy"}
_INLINED: Any = {"forceinline": True, **_OPTIONS}


class _Rows(NamedTuple):  # arrays of ``CompiledRows``
    rows: Ints
    tokens: Ints
    single: Ints


class _Cached(NamedTuple):  # keys and values of the step's tokens, and of all slots
    key: NDArray[Any]
    value: NDArray[Any]
    keys: NDArray[Any]
    values: NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRows:
    """All rows of a step: where their keys and values go, and what the tokens of short rows see.

    A token of a short row sees the leading columns of its slot. A branching node (a draft token that is not part of a
    chain, see ``plan``) also sees single columns after them: its own, and those of its ancestors in the draft tree.
    """

    #: per row: first token, slot, whether the row is short; the last column only ends the last row; shape (3, rows + 1)
    rows: Ints
    #: per token: column written, position, number of leading columns seen, index of its first entry in ``single``; the
    #: last column only ends the last token's entries; shape (4, tokens + 1)
    tokens: Ints
    #: for each branching node in turn, its ancestors and itself: tokens whose columns it sees, ascending, (singles,)
    single: Ints
    seen: Ints  #: leading columns seen by all short rows' tokens before each row, and in total, shape (rows + 1,)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """Write the new keys and values of all rows, and compute attention for the short rows.

        Shapes: ``query`` (tokens, heads, size), ``key`` and ``value`` (tokens, key heads, size), the slots' ``keys``
        and ``values`` (slots, key heads, columns, size). A token sees ``window`` positions, including its own
        (``None``: all). Returns the mixed values, (tokens, heads, value size), uninitialised for rows that are not
        short.
        """
        mixed = value.new_empty(len(query), query.shape[1], value.shape[-1])
        asked, new, new_values = (one.contiguous().numpy() for one in (query, key, value))
        cached = _Cached(new, new_values, keys.numpy(), values.numpy())
        plan = _Rows(self.rows, self.tokens, self.single)
        factor, seen, out = asked.dtype.type(scale), window or 0, mixed.numpy()

        def part(begin: int, end: int) -> None:
            _attend((begin, end), plan, asked, cached, out, factor, seen)

        rows, work = len(self.seen) - 1, int(self.seen[-1]) * query.shape[1] * query.shape[2]
        # Use no numba threads: two engines must not call these at once, and numba cannot share OpenMP with torch.
        parts = min(torch.get_num_threads(), work // _SHARE)
        if parts < 2:
            part(0, rows)
            return mixed
        edges = [0, *np.searchsorted(self.seen, self.seen[-1] * np.arange(1, parts) // parts).tolist(), rows]
        others = [_pool().submit(part, *edge) for edge in pairwise(edges[1:])]
        part(*edges[:2])
        for other in others:
            other.result()
        return mixed


@cache
def warm_up(dtype: torch.dtype) -> None:
    """Compile or load the loops for a precision, so that no step waits for compilation."""
    none, rows = torch.empty(0, 1, 1, dtype=dtype), np.zeros((3, 1), np.int64)
    slots, tokens = none[None], np.zeros((4, 1), np.int64)
    empty = CompiledRows(rows=rows, tokens=tokens, single=tokens[3, :0], seen=tokens[3])
    empty.attend(none, none, none, slots, slots, scale=1.0, window=None)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, torch.get_num_threads()), thread_name_prefix="engine-attention")


def kernel(function: Callable[..., Any]) -> Any:
    """Compile ``function`` on its first call, or load it from the cache."""
    return njit(nogil=True, cache=True, **_OPTIONS)(function)


def _part(function: Callable[..., Any]) -> Any:
    return njit(**_INLINED)(function)


@kernel
def _attend(part: Any, plan: Any, query: Any, cached: Any, mixed: Any, scale: Any, window: int) -> None:
    key, value, keys, values = cached.key, cached.value, cached.keys, cached.values
    start, slot, short, single = plan.rows[0], plan.rows[1], plan.rows[2], plan.single
    columns, positions, until, first = plan.tokens[0], plan.tokens[1], plan.tokens[2], plan.tokens[3]
    key_heads, groups = keys.shape[1], query.shape[1] // keys.shape[1]
    seen = np.empty(keys.shape[2], np.int64)
    weights, parts = np.empty(keys.shape[2], keys.dtype), np.empty(keys.shape[2], keys.dtype)
    bits = parts.view(np.int32)
    for row in range(part[0], part[1]):
        for head in range(key_heads):
            kept_keys, kept_values = keys[slot[row], head], values[slot[row], head]
            for token in range(start[row], start[row + 1]):
                _copy(key[token, head], kept_keys[columns[token]])
                _copy(value[token, head], kept_values[columns[token]])
            if not short[row]:
                continue
            for token in range(start[row], start[row + 1]):
                # The token sees columns ``lowest`` to ``until`` of its slot, then the single columns in ``seen``.
                lowest = max(0, positions[token] - window + 1) if window > 0 else 0
                leading = max(0, until[token] - lowest)
                count = leading
                for i in range(first[token], first[token + 1]):
                    if positions[single[i]] >= lowest:
                        seen[count] = columns[single[i]]
                        count += 1
                for asked in range(head * groups, (head + 1) * groups):
                    _score(query[token, asked], kept_keys[lowest:], leading, scale, weights)
                    for j in range(leading, count):
                        weights[j] = _product(query[token, asked], kept_keys[seen[j]]) * scale
                    total = _exponentials(weights, parts, bits, count)
                    for j in range(count):
                        weights[j] /= total
                    _mix(weights, kept_values[lowest:], leading, mixed[token, asked])
                    for j in range(leading, count):
                        _add(weights[j], kept_values[seen[j]], mixed[token, asked])


@_part
def _copy(source: Any, target: Any) -> None:
    for d in range(len(source)):
        target[d] = source[d]


@_part
def _add(weight: Any, value: Any, out: Any) -> None:
    for d in range(len(out)):
        out[d] += weight * value[d]


@_part
def _product(one: Any, other: Any) -> Any:
    total = one.dtype.type(0)
    for d in range(len(one)):
        total += one[d] * other[d]
    return total


@_part
def _score(query: Any, keys: Any, count: int, scale: Any, scores: Any) -> None:
    # four keys at a time, so that each number of the query is loaded once for all four
    j = 0
    while j + 4 <= count:
        one, two, three, four = keys[j], keys[j + 1], keys[j + 2], keys[j + 3]
        a = b = c = d = query.dtype.type(0)
        for i in range(len(query)):
            number = query[i]
            a += number * one[i]
            b += number * two[i]
            c += number * three[i]
            d += number * four[i]
        scores[j], scores[j + 1], scores[j + 2], scores[j + 3] = a * scale, b * scale, c * scale, d * scale
        j += 4
    while j < count:
        scores[j] = _product(query, keys[j]) * scale
        j += 1


@_part
def _mix(weights: Any, values: Any, count: int, out: Any) -> None:  # the weighted sum of the first values
    out[:] = 0
    j = 0
    while j + 4 <= count:
        one, two, three, four = values[j], values[j + 1], values[j + 2], values[j + 3]
        a, b, c, d = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
        for i in range(len(out)):
            out[i] += a * one[i] + b * two[i] + c * three[i] + d * four[i]
        j += 4
    while j < count:
        _add(weights[j], values[j], out)
        j += 1


def _exponentials(scores: Any, parts: Any, bits: Any, count: Any) -> Any:
    # Replaces the first ``count`` scores by exp(score - highest score) and returns their sum.
    # ``parts`` and ``bits`` are one working array, viewed as floats and as integers.
    raise NotImplementedError  # numba compiles ``_single`` or ``_double`` instead


@overload(_exponentials, jit_options=_INLINED)
def _compiled_exponentials(scores: Any, parts: Any, bits: Any, count: Any) -> Any:
    return _single if scores.dtype == types.float32 else _double


def _double(scores: Any, parts: Any, bits: Any, count: Any) -> Any:
    most = scores[:count].max()
    total = scores.dtype.type(0)
    for j in range(count):
        scores[j] = np.exp(scores[j] - most)
        total += scores[j]
    return total


def _single(scores: Any, parts: Any, bits: Any, count: Any) -> Any:
    # 2**x as an exponent set by its bits, times a polynomial of the fraction: without a call the loop vectorises.
    # It is the minimax polynomial of 2**f on [0, 1), with a relative error of 1.6e-7 in single precision.
    one = scores.dtype.type
    most = scores[0]
    for j in range(1, count):
        most = max(most, scores[j])
    for j in range(count):
        x = (scores[j] - most) * one(1.4426950408889634)
        x = one(-126) if x < one(-126) else x  # unlike ``max``, this keeps NaN
        whole = np.floor(x)
        f = x - whole
        p = one(1.8775767e-3) * f + one(8.9893397e-3)
        p = p * f + one(5.5826318e-2)
        p = p * f + one(2.4015361e-1)
        p = p * f + one(6.9315308e-1)
        scores[j] = p * f + one(9.9999994e-1)
        bits[j] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    total = one(0)
    for j in range(count):
        scores[j] *= parts[j]
        total += scores[j]
    return total
