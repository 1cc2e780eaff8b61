"""Machine instructions that numba does not reach by itself.

None of them checks its arguments: who calls knows what is readable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from turntree.spec_tree.kernels.compiled import inlined, int32, int64

_BYTE, _NUMBER = ir.IntType(8).as_pointer(), ir.IntType(32)


def _data(context: Any, builder: Any, kind: Any, array: Any, start: Any, lanes: int) -> Any:
    """The vector ``array[start:start + lanes]`` of 32-bit integers."""
    at = cgutils.gep(builder, context.make_array(kind)(context, builder, array).data, start)
    return builder.load(builder.bitcast(at, ir.VectorType(_NUMBER, lanes).as_pointer()), align=4)


def spread(builder: Any, value: Any, lanes: int) -> Any:
    """A vector that has ``value`` in every lane, in the code that ``builder`` writes."""
    kind = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _NUMBER(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_NUMBER, lanes), [0] * lanes))


def _simple(result: Any, taken: Any, build: Callable[[Any, Any], Any]) -> Any:
    """An intrinsic of one number."""

    def typed(typing: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return build(builder, arguments[0])

        return result(taken), generate

    return intrinsic(typed)


as_bits = _simple(types.int32, types.float32, lambda builder, value: builder.bitcast(value, _NUMBER))
"""The bits of a float32."""
from_bits = _simple(types.float32, types.int32, lambda builder, value: builder.bitcast(value, ir.FloatType()))
"""The float32 of the bits."""
lowest = _simple(types.int64, types.int64, lambda builder, value: builder.cttz(value, ir.IntType(1)(1)))
"""The number of the lowest bit that is set, of which there must be one."""


def _equal16(typing: Any, array: Any, start: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = _data(context, builder, signature.args[0], arguments[0], arguments[1], 16)
        same = builder.icmp_signed("==", found, spread(builder, arguments[2], 16))
        return builder.zext(builder.bitcast(same, ir.IntType(16)), ir.IntType(64))

    return types.int64(array, types.int64, types.int32), generate


equal16: Any = intrinsic(_equal16)
"""``equal16(array, start, value)``: bit ``i`` says whether ``array[start + i] == value``, of int32, for 16 entries."""


def _alike8(typing: Any, first: Any, at: Any, second: Any, other: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        mine, theirs = (
            _data(context, builder, kind, array, builder.sub(last, ir.IntType(64)(7)), 8)
            for kind, array, last in zip(signature.args[::2], arguments[::2], arguments[1::2], strict=True)
        )
        negative = builder.icmp_signed("<", mine, ir.Constant(mine.type, [0] * 8))
        wrong = builder.or_(builder.icmp_signed("!=", mine, theirs), negative)
        return builder.zext(builder.ctlz(builder.bitcast(wrong, ir.IntType(8)), ir.IntType(1)(0)), ir.IntType(64))

    return types.int64(first, types.int64, second, types.int64), generate


alike8: Any = intrinsic(_alike8)
"""``alike8(first, at, second, other)``: how many of the 8 entries that end with ``first[at]`` equal those that end with
``second[other]`` and are not negative, counted from the ends; of int32."""


def _fetch(typing: Any, array: Any, row: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        some = context.make_array(signature.args[0])(context, builder, arguments[0])
        (stride, *_) = cgutils.unpack_tuple(builder, some.strides)
        address = builder.gep(builder.bitcast(some.data, _BYTE), [builder.mul(arguments[1], stride)])
        kind = ir.FunctionType(ir.VoidType(), [_BYTE, _NUMBER, _NUMBER, _NUMBER])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(prefetch, [address, _NUMBER(0), _NUMBER(3), _NUMBER(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


fetch: Any = intrinsic(_fetch)
"""``fetch(array, row)``: ask for the memory at ``array[row]``, which is read soon; nothing waits for it."""


def _add(typing: Any, array: Any, at: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = cgutils.gep(
            builder, context.make_array(signature.args[0])(context, builder, arguments[0]).data, arguments[1]
        )
        return builder.atomic_rmw("add", place, arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


add: Any = intrinsic(_add)
"""``add(array, at, value)``: add to ``array[at]``, of int64, and return what it was; of threads that do so, each sees
what the ones before had written."""


@inlined
def where(value: int, array: NDArray[np.int32], start: int, stop: int) -> int:
    """Where ``value`` is first in ``array[start:stop]``, behind which 15 entries must be readable; -1 if it is not."""
    place: int = int64(-1)
    while place < 0 and start < stop:
        found = equal16(array, start, int32(value)) & ((int64(1) << min(stop - start, int64(16))) - 1)
        if found:
            place = start + lowest(found)
        start += 16
    return place
