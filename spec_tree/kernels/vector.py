"""The network that weighs a node, in vector instructions: numba's loops over so few figures stay scalar."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from turntree.spec_tree.kernels.instructions import spread
from turntree.spec_tree.kernels.layout import HIDDEN, INPUTS

_UNITS = ir.VectorType(ir.FloatType(), HIDDEN)


def _network(typing: Any, inputs: Any, inner: Any, bias: Any, outer: Any) -> Any:
    """``sum_i outer[i] * max(0, bias[i] + sum_j inputs[j] * inner[j, i])``.

    Args:
        inputs: float32, contiguous, shape (INPUTS,).
        inner: float32, contiguous, shape (INPUTS, HIDDEN).
        bias: float32, contiguous, shape (HIDDEN,).
    """
    if not all(
        isinstance(array, types.Array) and array.dtype == types.float32 for array in (inputs, inner, bias, outer)
    ):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        given, first, start, second = (
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args, arguments, strict=True)
        )

        def units(pointer: Any, row: int = 0) -> Any:
            at = cgutils.gep(builder, pointer, row * HIDDEN)
            return builder.load(builder.bitcast(at, _UNITS.as_pointer()), align=4)

        sums = [units(start), ir.Constant(_UNITS, [0.0] * HIDDEN)]
        for j in range(INPUTS):
            value = spread(builder, builder.load(cgutils.gep(builder, given, j)), HIDDEN)
            product = builder.fmul(value, units(first, j), flags=("fast",))
            sums[j % 2] = builder.fadd(sums[j % 2], product, flags=("fast",))
        zero = ir.Constant(_UNITS, [0.0] * HIDDEN)
        total = builder.fadd(*sums, flags=("fast",))
        positive = builder.select(builder.fcmp_ordered(">", total, zero), total, zero)
        weighed = builder.fmul(positive, units(second), flags=("fast",))
        reduce = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.FloatType(), [ir.FloatType(), _UNITS]),
            f"llvm.vector.reduce.fadd.v{HIDDEN}f32",
        )
        return builder.call(reduce, [ir.Constant(ir.FloatType(), 0.0), weighed], fastmath=("fast",))

    return types.float32(inputs, inner, bias, outer), generate


network: Any = intrinsic(_network)
