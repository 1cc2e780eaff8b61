"""LLVM intrinsics that numba does not expose. None of them checks its arguments."""

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
    at = cgutils.gep(builder, context.make_array(kind)(context, builder, array).data, start)
    return builder.load(builder.bitcast(at, ir.VectorType(_NUMBER, lanes).as_pointer()), align=4)


def spread(builder: Any, value: Any, lanes: int) -> Any:
    kind = ir.VectorType(value.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), value, _NUMBER(0))
    return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(_NUMBER, lanes), [0] * lanes))


def _simple(result: Any, taken: Any, build: Callable[[Any, Any], Any]) -> Any:
    def typed(typing: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return build(builder, arguments[0])

        return result(taken), generate

    return intrinsic(typed)


#: bits of a float32
as_bits = _simple(types.int32, types.float32, lambda builder, value: builder.bitcast(value, _NUMBER))
#: float32 with these bits
from_bits = _simple(types.float32, types.int32, lambda builder, value: builder.bitcast(value, ir.FloatType()))
#: index of the lowest set bit; at least one bit must be set
lowest = _simple(types.int64, types.int64, lambda builder, value: builder.cttz(value, ir.IntType(1)(1)))


def _equal16(typing: Any, array: Any, start: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        found = _data(context, builder, signature.args[0], arguments[0], arguments[1], 16)
        same = builder.icmp_signed("==", found, spread(builder, arguments[2], 16))
        return builder.zext(builder.bitcast(same, ir.IntType(16)), ir.IntType(64))

    return types.int64(array, types.int64, types.int32), generate


#: ``equal16(array, start, value)``: bit ``i`` is set if ``array[start + i] == value``, for 16 entries of int32
equal16: Any = intrinsic(_equal16)


def _alike8(typing: Any, first: Any, at: Any, second: Any, other: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        mine, theirs = (
            _data(context, builder, kind, array, builder.sub(last, ir.IntType(64)(7)), 8)
            for kind, array, last in zip(signature.args[::2], arguments[::2], arguments[1::2], strict=True)
        )
        # Marks are negative and never count as equal: the caller must look at them.
        negative = builder.icmp_signed("<", mine, ir.Constant(mine.type, [0] * 8))
        wrong = builder.or_(builder.icmp_signed("!=", mine, theirs), negative)
        return builder.zext(builder.ctlz(builder.bitcast(wrong, ir.IntType(8)), ir.IntType(1)(0)), ir.IntType(64))

    return types.int64(first, types.int64, second, types.int64), generate


#: ``alike8(first, at, second, other)``: compares the 8 int32 that end at ``first[at]`` with the 8 that end at
#: ``second[other]``; returns how many, counted backwards from the ends, are equal and not negative
alike8: Any = intrinsic(_alike8)


def _fetch(typing: Any, array: Any, row: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        some = context.make_array(signature.args[0])(context, builder, arguments[0])
        (stride, *_) = cgutils.unpack_tuple(builder, some.strides)
        address = builder.gep(builder.bitcast(some.data, _BYTE), [builder.mul(arguments[1], stride)])
        kind = ir.FunctionType(ir.VoidType(), [_BYTE, _NUMBER, _NUMBER, _NUMBER])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # for reading (0), keep in all cache levels (3), data cache (1)
        builder.call(prefetch, [address, _NUMBER(0), _NUMBER(3), _NUMBER(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


fetch: Any = intrinsic(_fetch)  #: ``fetch(array, row)``: prefetch ``array[row]`` into the cache without waiting


def _add(typing: Any, array: Any, at: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.atomic_rmw("add", cgutils.gep(builder, data, arguments[1]), arguments[2], "seq_cst")

    return types.int64(array, types.int64, types.int64), generate


#: ``add(array, at, value)``: atomic fetch-and-add on an int64, sequentially consistent between threads
add: Any = intrinsic(_add)


@inlined
def where(value: int, array: NDArray[np.int32], start: int, stop: int) -> int:
    """Return the first index of ``value`` in ``array[start:stop]``, or -1; reads up to 15 entries past ``stop``."""
    position: int = int64(-1)
    while position < 0 and start < stop:
        # Mask the bits past ``stop``.
        found = equal16(array, start, int32(value)) & ((int64(1) << min(stop - start, int64(16))) - 1)
        if found:
            position = start + lowest(found)
        start += 16
    return position
