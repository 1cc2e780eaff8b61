"""One step's sampling and draft verification as Triton kernels: from logits to tokens and log-probabilities.

``draw_rows`` samples a token at each row of logits, by a race of exponential clocks (``race_kernel``: the token with
the smallest ``-log(u) / weight`` wins) after dividing by the request's temperature. A greedy request gets the most
probable token. The same read of the row sums exp(logit), which gives the sampled token's log-probability. With few
rows, several programs share a row, so that the whole device works. ``match_rows`` keeps each request's sampled tokens
that agree with its draft, and the first token after them.

The tokens are those of ``race_kernel.race_rows`` on float32 logits divided by the temperature. One compiled variant per
model serves every step, since Triton does not specialise the numbers that change between steps.

Not covered: top-k, top-p, penalties and masks; ``agents/engines/vllm/drawing`` selects the requests without them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from turntree.agents.engines.drafting.race_kernel import BLOCK, LOWEST, race_block, stream

_GREEDY = tl.constexpr(1e-5)  #: temperature below which the most probable token is taken, as in vLLM
_AT_ONCE = 32  #: tokens of a request that are compared at once
PROGRAMS = 512  #: maximum programs that share the rows, about four per multiprocessor of an H100
#: arguments of ``_draw`` that change between steps
_VARYING = ("parts", "rows", "ends", "positions", "indices", "shift", "count", "all_rows", "drafted", "split", "length")


@triton.jit
def _read_part(logits, begin, first, last, size, temperature, BLOCK: tl.constexpr):
    # One program's blocks of a row: the earliest clock and its token, the highest logit, the sum of
    # exp(logit - highest), and for greedy requests the number of logits equal to the highest.
    greedy = temperature < _GREEDY
    divisor = tl.where(greedy, 1.0, temperature)
    earliest = tl.full((), float("inf"), tl.float64)
    winner = first.to(tl.int64) * BLOCK
    highest = tl.full((), LOWEST, tl.float32)
    total = tl.full((), 0.0, tl.float64)
    alike = tl.full((), 0, tl.int32)
    for block in range(first, last):
        start = block * BLOCK
        tokens = start + tl.arange(0, BLOCK)
        read = tl.load(logits + tokens, mask=tokens < size, other=float("-inf"))
        value = read.to(tl.float32)
        if divisor != 1.0:
            value = tl.div_rn(value, divisor)
        most = tl.max(value, 0)
        if most > highest:
            # Clocks and the sum use weights exp(logit - highest), so rescale both when ``highest`` grows.
            grown = tl.exp(most.to(tl.float64) - highest.to(tl.float64))
            earliest = earliest * grown
            total = total / grown
            highest = most
            if greedy:
                winner = start + tl.argmax(value, 0).to(tl.int64)
                # A constant clock: ``_merge`` rescales it by the parts' highest logits, so the highest wins.
                earliest = tl.full((), 1.0, tl.float64)
                alike = tl.full((), 0, tl.int32)
        weights = tl.exp(value - highest)
        total += tl.sum(weights, 0).to(tl.float64)
        if greedy:
            alike += tl.sum((value == highest).to(tl.int32), 0)
        else:
            bound = weights.to(tl.float64)
            earliest, winner = race_block(begin, start, tokens, value, highest, bound, earliest, winner, True)
    return earliest, winner, highest, total, alike


# Program (request, step, part): one part of the vocabulary at the request's ``step``-th row. ``parts`` gets six planes
# of shape (split, all_rows), float64: clock, highest logit, sum, the winner's logit, the winner, equal logits.
@triton.jit(do_not_specialize=_VARYING, do_not_specialize_on_alignment=_VARYING)
def _draw(
    values, parts, rows, ends, positions, indices, shift, count, all_rows, drafted, split, length, stride, size,
    BLOCK: tl.constexpr,
):  # fmt: skip
    request, step, part = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    row, end = request, request + 1
    if drafted:
        row = tl.load(ends + request - 1, mask=request > 0, other=0).to(tl.int64) + step
        end = tl.load(ends + request).to(tl.int64)
    # The grid is as wide as the longest draft; a request with fewer rows leaves the rest unused.
    if row < end:
        # Logits belong to the token that they follow; the sampled token is at the next position.
        position = tl.load(positions + tl.load(indices + row).to(tl.int64) + shift).to(tl.int64) + 1
        seed = tl.load(rows + request).to(tl.uint64, bitcast=True)
        begin = stream(seed, (position + tl.load(rows + count + request)).to(tl.uint64))
        temperature = tl.load(rows + 2 * count + request).to(tl.float64, bitcast=True).to(tl.float32)
        first, last = part * length, tl.minimum((part + 1) * length, tl.cdiv(size, BLOCK))
        logits = values + row * stride
        earliest, winner, highest, total, alike = _read_part(logits, begin, first, last, size, temperature, BLOCK)
        chosen = tl.load(logits + winner).to(tl.float32)
        found = parts + part * all_rows + row
        plane = split * all_rows
        tl.store(found, earliest)
        tl.store(found + plane, highest.to(tl.float64))
        tl.store(found + 2 * plane, total)
        divisor = tl.where(temperature < _GREEDY, 1.0, temperature)
        tl.store(found + 3 * plane, tl.div_rn(chosen, divisor).to(tl.float64))
        tl.store(found + 4 * plane, winner.to(tl.float64))
        tl.store(found + 5 * plane, alike.to(tl.float64))


_OF_PARTS = ("parts", "found", "all_rows", "split")


# Joins the parts of each row: ``found`` gets the planes that ``draw_rows`` returns.
@triton.jit(do_not_specialize=_OF_PARTS, do_not_specialize_on_alignment=_OF_PARTS)
def _merge(parts, found, all_rows, split, AT_ONCE: tl.constexpr):
    row = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    own = row < all_rows
    plane = split * all_rows
    highest = tl.full((AT_ONCE,), LOWEST, tl.float64)
    for part in range(0, split):
        highest = tl.maximum(highest, tl.load(parts + plane + part * all_rows + row, mask=own, other=LOWEST))
    earliest = tl.full((AT_ONCE,), float("inf"), tl.float64)
    total = tl.full((AT_ONCE,), 0.0, tl.float64)
    chosen = tl.full((AT_ONCE,), float("-inf"), tl.float64)
    winner = tl.full((AT_ONCE,), 0.0, tl.float64)
    alike = tl.full((AT_ONCE,), 0.0, tl.float64)
    # Each part's clock and sum are relative to its own highest logit: rescale them to the row's highest.
    for part in range(0, split):
        at = parts + part * all_rows + row
        its_highest = tl.load(at + plane, mask=own, other=LOWEST)
        grown = tl.exp(highest - its_highest)
        clock = tl.load(at, mask=own, other=float("inf")) * grown
        total += tl.load(at + 2 * plane, mask=own, other=0.0) / grown
        first = clock < earliest
        earliest = tl.where(first, clock, earliest)
        chosen = tl.where(first, tl.load(at + 3 * plane, mask=own, other=0.0), chosen)
        winner = tl.where(first, tl.load(at + 4 * plane, mask=own, other=0.0), winner)
        alike += tl.where(its_highest == highest, tl.load(at + 5 * plane, mask=own, other=0.0), 0.0)
    logprob = (chosen - highest - tl.log(total)).to(tl.float32)
    tl.store(found + row, winner.to(tl.int32), mask=own)
    tl.store(found + all_rows + row, logprob.to(tl.int32, bitcast=True), mask=own)
    tl.store(found + 2 * all_rows + row, alike.to(tl.int32), mask=own)


_OF_A_STEP = ("found", "drafts", "ends", "out", "all_rows", "width")


@triton.jit(do_not_specialize=_OF_A_STEP, do_not_specialize_on_alignment=_OF_A_STEP)
def _match(found, drafts, ends, out, all_rows, width, AT_ONCE: tl.constexpr):
    request, requests = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    first = tl.load(ends + request - 1, mask=request > 0, other=0).to(tl.int64)
    length = tl.load(ends + request).to(tl.int64) - first - 1
    kept = length
    for start in range(0, width, AT_ONCE):
        steps = start + tl.arange(0, AT_ONCE)
        own = steps <= length
        # Each earlier request has one row more than drafted tokens, hence ``first - request``.
        draft = tl.load(drafts + (first - request) + steps, mask=steps < length, other=-1).to(tl.int32)
        token = tl.load(found + first + steps, mask=own, other=-1)
        kept = tl.minimum(kept, tl.min(tl.where((token == draft) & own, length, steps.to(tl.int64)), 0))
        stays = steps <= kept
        target = request * width + steps
        inside = steps < width
        tl.store(out + target, tl.where(stays, token, -1), mask=inside)
        for plane in range(1, 3):
            number = tl.load(found + plane * all_rows + first + steps, mask=stays & own, other=0)
            tl.store(out + plane * requests * width + target, number, mask=inside)


def draw_rows(
    logits: Tensor,
    rows: Tensor,
    positions: Tensor,
    indices: Tensor,
    *,
    shift: int = 0,
    ends: Tensor | None = None,
    width: int = 1,
) -> Tensor:
    """Draw one token at each row of logits.

    Args:
        logits: Before temperature, float32, float16 or bfloat16, shape (rows, vocabulary).
        rows: Per request, int64, shape (3, requests): bits of the seed; offset from a token's position in the sequence
            to its position in the turn; bits of the float64 temperature.
        positions: Position in its sequence of each token of the pass, int64, shape (tokens,).
        indices: For each row of logits, the index in ``positions`` of the token that it follows, minus ``shift``.
        ends: End of each request's rows, shape (requests,); ``None`` if each has one row.

    Returns:
        int32, shape (3, rows): tokens, bits of their float32 log-probabilities, and for greedy requests how many logits
        equal the highest one (0 for other requests).
    """
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    (count, size), requests, device = logits.shape, rows.shape[1], logits.device
    blocks = triton.cdiv(size, BLOCK)
    length = triton.cdiv(blocks, min(blocks, max(1, PROGRAMS // max(count, 1))))
    split = triton.cdiv(blocks, length)
    parts = torch.empty((6, split, count), dtype=torch.float64, device=device)
    found = torch.empty((3, count), dtype=torch.int32, device=device)
    if count:
        _draw[(requests, width, split)](
            logits,
            parts,
            rows,
            indices if ends is None else ends,
            positions,
            indices,
            shift,
            requests,
            count,
            int(ends is not None),
            split,
            length,
            logits.stride(0),
            size,
            BLOCK=BLOCK,
            num_warps=8,
            enable_fp_fusion=False,
        )
        _merge[(triton.cdiv(count, _AT_ONCE),)](
            parts, found, count, split, AT_ONCE=_AT_ONCE, num_warps=1, enable_fp_fusion=False
        )
    return found


def match_rows(found: Tensor, drafts: Tensor, ends: Tensor, width: int) -> Tensor:
    """Keep each request's tokens that agree with its draft, and the first token after them.

    Args:
        found: Result of ``draw_rows``, shape (3, rows).
        drafts: The requests' drafted tokens, concatenated, shape (rows - requests,).
        ends: End of each request's rows, one more than its drafted tokens, shape (requests,).

    Returns:
        int32, shape (3, requests, width): as ``found``. After a request's last token, tokens are -1, other numbers 0.
    """
    out = torch.empty((3, len(ends), width), dtype=torch.int32, device=found.device)
    if len(ends):
        _match[(len(ends),)](found, drafts, ends, out, found.shape[1], width, AT_ONCE=_AT_ONCE, num_warps=1)
    return out


def warm_up(logits: Tensor) -> None:
    """Compile the kernels for logits like these (at least one row), so that no step waits for compilation."""
    device = logits.device
    one = torch.ones(1, dtype=torch.int32, device=device)
    rows, positions = (torch.zeros(size, dtype=torch.int64, device=device) for size in ((3, 1), (1,)))
    for indices in (one, one.long()):  # vLLM's indices are int32 in steps without drafts, else int64
        found = draw_rows(logits[:1], rows, positions, indices, shift=-1, ends=one)
    match_rows(found, one[:0], one, 1)
