"""Estimate the probability of a node given its parent with a logistic model.

The logit is a sum of three terms: the log-odds of the votes, weights learned online, and a small network over sixteen
inputs. The online weights are hashed by the node's token, by the previous token, by both, and by the number of votes.
If only ``UNMATCHED`` candidates and followers voted for a node, just the votes and the weight of its token count.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from turntree.spec_tree.kernels.compiled import float32, index, inlined, inlined_fast, int32, int64, uint32, uint64
from turntree.spec_tree.kernels.instructions import as_bits, from_bits, spread
from turntree.spec_tree.kernels.layout import (
    AROUND_ANCHOR,
    AT_ANCHOR,
    CONTEXT,
    ENV,
    EXACT,
    FEW,
    HASHED,
    HIDDEN,
    INPUTS,
    KINDS,
    NEAR_ANCHOR,
    TABLES,
    TASK,
    TOOLS,
    UNMATCHED,
)

#: ``log(1 + count)``; counts of candidates and nodes stay below 256
_LOG1P = np.log1p(np.arange(256)).astype(np.float32)
_FAINT = np.float32(-6.0)  #: lower clip of the path's log-probability, as in the data that the network was fitted on
_ROOT_HALF = np.float32(math.sqrt(0.5)).view(np.int32)
_LN2, _LOG2E = np.float32(math.log(2.0)), np.float32(1.0 / math.log(2.0))
_BIAS, _MANTISSA = np.int32(127), np.int32(23)
_UNITS = ir.VectorType(ir.FloatType(), HIDDEN)


@inlined_fast
def logarithm(x: float) -> float:
    # Accurate to about six digits, inlined because a call of libm would spill all of the caller's registers.
    # x = 2**e * m with m around 1, and log(m) = 2 artanh(s), s = (m - 1) / (m + 1), by its series.
    e = int32(int32(as_bits(x) - _ROOT_HALF) >> _MANTISSA)
    m = from_bits(int32(as_bits(x) - int32(e << _MANTISSA)))
    s = (m - float32(1.0)) / (m + float32(1.0))
    q = s * s
    series = float32(1.0) + q * (float32(1 / 3) + q * (float32(1 / 5) + q * float32(1 / 7)))
    result: float = float32(e) * _LN2 + float32(2.0) * s * series
    return result


@inlined_fast
def logistic(x: float) -> float:
    # 1 / (1 + exp(-x)) with exp(-x) = 2**n * exp(r), |r| <= log(2) / 2, by its series.
    t = min(max(-x, float32(-80.0)), float32(80.0))
    n = int32(t * _LOG2E + float32(1000.5)) - int32(1000)
    r = t - float32(n) * _LN2
    series = float32(1 / 6) + r * (float32(1 / 24) + r * (float32(1 / 120) + r * float32(1 / 720)))
    series = float32(1.0) + r * (float32(1.0) + r * (float32(0.5) + r * series))
    result: float = float32(1.0) / (float32(1.0) + series * from_bits(int32((n + _BIAS) << _MANTISSA)))
    return result


def _network(typing: Any, inputs: Any, inner: Any, bias: Any, outer: Any) -> Any:
    # sum_i outer[i] * max(0, bias[i] + sum_j inputs[j] * inner[j, i]) in vector instructions: numba's loops over so
    # few numbers stay scalar. Contiguous float32: inputs (INPUTS,), inner (INPUTS, HIDDEN), bias and outer (HIDDEN,).
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

        # Two running sums, so that an addition need not wait for the addition before.
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


@inlined
def _hashed(first: int, second: int) -> int:
    key = uint64(uint32(first)) * uint64(0x9E3779B97F4A7C15) ^ uint64(uint32(second)) * uint64(0xC2B2AE3D27D4EB4F)
    key = (key ^ (key >> uint64(31))) * uint64(0xD6E8FEB86659FD93)
    return int64((key >> uint64(40)) & uint64(HASHED - 1))


@inlined_fast
def weigh(current: int, first: int, nodes: int, turn: Any, weights: Any, work: Any) -> None:
    """Estimate the probability of the children of ``current``, the nodes ``first:nodes``.

    Reads the votes in ``work``; fills votes, probabilities and hashes of the children in ``turn``.
    """
    tokens, votes, probabilities, hashes = turn.node_token, turn.node_votes, turn.node_probability, turn.node_hashes
    weight, support, best_length, newest_candidate = work.weight, work.support, work.best_length, work.newest_candidate
    inputs, total, voters, few = work.inputs, work.total, work.voters, min(work.voters, FEW)
    current = index(current)
    log_total, log_path = logarithm(total), max(logarithm(work.path[current]), _FAINT)
    for child in range(first, nodes):
        z = index(child)
        vote = logarithm(min(max(weight[z] / (total - weight[z]), float32(1e-4)), float32(2000.0)))
        # The second number (1, 2, 3, ...) gives each property that starts with a token a hash of its own.
        hashes[z, 0] = _hashed(tokens[z], int64(1))
        learnt = weights.hashed[0, hashes[z, 0]]
        if support[z, KINDS] == support[z, UNMATCHED]:
            hashes[z, 1] = -1  # tells ``learn_nodes`` that only the token's own weight counted
            logit = learnt + weights.scale * vote
        else:
            mine = min(support[z, KINDS], FEW)
            hashes[z, 1] = _hashed(tokens[current], int64(2))
            hashes[z, 2] = _hashed(tokens[current], tokens[z] + 3)
            # Not hashed: each class of agreement with each pair of vote counts has its own entry.
            hashes[z, 3] = ((best_length[z] * 9 + mine) * 9 + few) & (HASHED - 1)
            for j in range(1, TABLES):
                learnt += weights.hashed[j, hashes[z, j]]
            # The network's weights are fitted to this order of inputs.
            inputs[z, 0] = vote
            inputs[z, 1] = _LOG1P[support[z, EXACT]]
            inputs[z, 2] = _LOG1P[support[z, TASK] + support[z, TOOLS]]
            inputs[z, 3] = _LOG1P[support[z, ENV]]
            inputs[z, 4] = _LOG1P[support[z, UNMATCHED]]
            inputs[z, 5] = _LOG1P[support[z, CONTEXT]]
            inputs[z, 6] = _LOG1P[support[z, AT_ANCHOR]]
            inputs[z, 7] = _LOG1P[support[z, NEAR_ANCHOR] + support[z, AROUND_ANCHOR]]
            inputs[z, 8] = (work.longest - best_length[z]) * float32(1 / 18)  # classes below the best
            inputs[z, 9] = _LOG1P[voters]
            inputs[z, 10] = 1.0 if z == work.newest_node else 0.0
            inputs[z, 11] = _LOG1P[nodes - first]
            inputs[z, 12] = _LOG1P[newest_candidate[z] - work.newest]  # approximate number of newer candidates
            inputs[z, 13] = learnt
            inputs[z, 14] = log_path
            inputs[z, 15] = log_total
            logit = learnt + weights.scale * vote
            logit += network(inputs[z], weights.inner, weights.bias, weights.outer)
        votes[z], probabilities[z] = vote, logistic(logit)
