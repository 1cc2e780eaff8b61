"""Conversion of live requests and their drafts to the flat arrays of one forward pass.

Row ``b``, one request, contributes its pending tokens (new to the model, but no drafts), then its nodes: draft tokens,
a tree below the last pending token. The arrays have all rows in order; row ``b`` begins at ``start[b]``. The first
nodes often continue the pending tokens as a chain, and see all earlier tokens of the row as prompt tokens do. Only the
remaining, branching nodes need a list of ancestors. So a long chain costs no more than prompt tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from turntree.agents.engines.local.forward.attention import AttentionPlan, Segment
from turntree.agents.engines.local.forward.compiled import CompiledRows
from turntree.agents.engines.local.forward.slots import SlotCache
from turntree.spec_tree import DraftBatch

Ints = NDArray[np.int64]

_LONG = 32  #: rows with more new tokens than this share a segment only with rows of similar length
_GAP = 0.34  #: maximum fraction of a segment's slots that have no row


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One forward pass."""

    tokens: Ints  #: shape (tokens,)
    positions: Ints  #: position of each token in its sequence, shape (tokens,)
    slots: Ints  #: slot of each token, shape (tokens,)
    columns: Ints  #: column of the cache that each token is written to, shape (tokens,)
    start: Ints  #: first token of each row, shape (rows + 1,)
    causal: Ints  #: pending tokens of each row plus the nodes that continue them as a chain, shape (rows,)
    branching: Ints  #: all other nodes, as indices into ``draft``, shape (branching,)
    #: nodes of the row on the path to each branching node, including that node, shape (branching, longest row)
    ancestors: NDArray[np.bool_]
    draft: DraftBatch
    slot: Ints  #: slot of each row, ascending, shape (rows,)
    computed: Ints  #: tokens of each row in the cache before the pass, shape (rows,)
    pending: Ints  #: new tokens of each row that are not drafts, shape (rows,)


def plan_step(
    *, slot: Ints, computed: Ints, pending: Ints, pending_tokens: Sequence[Sequence[int]], draft: DraftBatch
) -> StepPlan:
    """Lay out one step.

    Args:
        slot: Slot of each row, ascending, shape (rows,).
        computed: Tokens of each row already in the cache, shape (rows,).
        pending: Number of pending tokens, at least 1, shape (rows,).
        pending_tokens: The tokens themselves, one sequence per row.
        draft: One tree per row.
    """
    counts = np.diff(draft.offsets)
    start = np.zeros(len(slot) + 1, np.int64)
    np.cumsum(pending + counts, out=start[1:])
    row = np.repeat(np.arange(len(slot)), pending + counts)
    within = np.arange(start[-1]) - start[row]
    node_row = np.repeat(np.arange(len(slot)), counts)
    node = np.arange(len(draft.tokens)) - draft.offsets[node_row]
    nodes = start[node_row] + pending[node_row] + node

    tokens = np.empty(start[-1], np.int64)
    is_pending = np.ones(start[-1], bool)
    is_pending[nodes] = False
    tokens[is_pending] = np.concatenate([np.asarray(t, np.int64) for t in pending_tokens])
    tokens[nodes] = draft.tokens
    columns = computed[row] + within
    positions = columns.copy()
    positions[nodes] = computed[node_row] + pending[node_row] + draft.depths - 1
    lead = _lead(draft, node_row, node)
    branching = np.flatnonzero(node >= lead[node_row])
    return StepPlan(
        tokens=tokens,
        positions=positions,
        slots=slot[row],
        columns=columns,
        start=start,
        causal=pending + lead,
        branching=branching,
        ancestors=_ancestors(draft, branching, node[branching], lead[node_row[branching]]),
        draft=draft,
        slot=slot,
        computed=computed,
        pending=pending,
    )


def _lead(draft: DraftBatch, node_row: Ints, node: Ints) -> Ints:
    # number of leading nodes of each row that form a chain
    lead = np.diff(draft.offsets)
    branches = np.flatnonzero(draft.parents != node - 1)
    np.minimum.at(lead, node_row[branches], node[branches])
    return lead


def _ancestors(draft: DraftBatch, branching: Ints, node: Ints, lead: Ints) -> NDArray[np.bool_]:
    seen = np.zeros((len(branching), int(np.diff(draft.offsets).max(initial=0))), bool)
    each = np.arange(len(branching))
    parent = draft.parents[branching].astype(np.int64)
    on_line = parent < lead
    seen[on_line] = np.arange(seen.shape[1]) <= parent[on_line, None]
    seen[each, node] = True
    up = np.where(on_line, each, each - (node - parent))
    # Pointer doubling: ``seen`` has each node's path up to ``up``; adding the path seen at ``up`` doubles it.
    while not (up == each).all():
        seen |= seen[up]
        each, up = up, up[up]
    return seen


def attention_plan(
    step: StepPlan, cache: SlotCache, *, windows: bool, device: torch.device, looped: int = 0
) -> AttentionPlan:
    """Convert the step for attention.

    Args:
        looped: On the CPU, a row goes through the compiled loops if its tokens see at most this many columns in total,
            whatever the other rows are; 0 if no loops are available.
    """
    width = np.diff(step.start)
    looped = looped if device.type == "cpu" else 0
    loops = width * step.computed + width * (width + 1) // 2 <= looped
    groups = np.flatnonzero((width <= _LONG) & ~loops), np.flatnonzero((width > _LONG) & ~loops)
    segments = [
        _segment(step, rows, windows=windows, device=device)
        for group in groups
        for rows in _runs(step.slot, group, width)
    ]
    return AttentionPlan(
        cache=cache,
        slots=_to(step.slots, device),
        columns=_to(step.columns, device),
        segments=segments,
        compiled=_compiled(step, loops) if loops.any() else None,
    )


def _compiled(step: StepPlan, short: NDArray[np.bool_]) -> CompiledRows:
    rows, tokens = np.zeros((3, len(step.start)), np.int64), np.zeros((4, len(step.tokens) + 1), np.int64)
    rows[0], rows[1, :-1], rows[2, :-1] = step.start, step.slot, short
    tokens[:3, :-1] = step.columns, step.positions, step.columns + 1
    single = step.branching
    if len(step.branching):
        node_row = np.searchsorted(step.draft.offsets, step.branching, side="right") - 1
        begin = (step.start[:-1] + step.pending)[node_row]
        token = begin + step.branching - step.draft.offsets[node_row]
        tokens[2, token] = (step.computed + step.pending)[node_row]
        tokens[3, token + 1] = step.ancestors.sum(1)
        nth, other = np.nonzero(step.ancestors)  # ascending like the branching nodes, as ``single`` must be
        single = begin[nth] + other
        np.cumsum(tokens[3], out=tokens[3])
    until = np.append(0, np.cumsum(np.where(np.repeat(short, np.diff(step.start)), tokens[2, :-1], 0)))
    return CompiledRows(rows=rows, tokens=tokens, single=single, seen=until[step.start])


def _runs(slot: Ints, rows: Ints, width: Ints) -> list[Ints]:
    # groups of rows with nearby slots and, for long rows, of similar width (number of new tokens)
    runs: list[list[int]] = []
    for row in rows.tolist():
        if runs:
            run = runs[-1]
            span, idle = slot[row] - slot[run[0]] + 1, slot[row] - slot[run[-1]] - 1
            alike = width[row] <= _LONG or abs(width[row] - width[run[0]]) * 4 <= width[run[0]]
            if alike and (idle <= 1 or span - len(run) - 1 <= _GAP * span):
                run.append(row)
                continue
        runs.append([row])
    return [np.asarray(run, np.int64) for run in runs]


def _segment(step: StepPlan, rows: Ints, *, windows: bool, device: torch.device) -> Segment:
    first = int(step.slot[rows[0]])
    size = int(step.slot[rows[-1]]) - first + 1
    local = step.slot[rows] - first
    count = np.diff(step.start)[rows]
    width = int(count.max())
    length = int((step.computed[rows] + count).max())

    owner = np.repeat(np.arange(len(rows)), count)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    flat = step.start[rows][owner] + within
    padded = local[owner] * width + within

    sees = _visible_columns(step, rows, local, (size, width, length))
    mask = torch.zeros(sees.shape, dtype=torch.float32).masked_fill_(torch.from_numpy(~sees), float("-inf"))

    distance = None  # positions, not columns, count for a sliding window: siblings share a position
    if windows:
        positions = np.zeros((size, width), np.int64)
        positions.reshape(-1)[padded] = step.positions[flat]
        of_column = np.broadcast_to(np.arange(length), (size, length)).copy()
        of_column[local[owner], step.columns[flat]] = step.positions[flat]
        distance = _to(positions[:, :, None] - of_column[:, None, :], device)
    dense = len(padded) == size * width
    return Segment(
        first=first,
        rows=size,
        width=width,
        length=length,
        flat=_to(flat, device),
        padded=None if dense else _to(padded, device),
        mask=mask.to(device),
        distance=distance,
    )


def _visible_columns(step: StepPlan, rows: Ints, local: Ints, shape: tuple[int, int, int]) -> NDArray[np.bool_]:
    # Which columns each token of a segment attends to, shape (slots, width, columns).
    size, width, length = shape
    base = np.zeros(size, np.int64)
    base[local] = step.computed[rows]
    pending = np.ones(size, np.int64)
    pending[local] = step.pending[rows]
    # A chain's token sees all columns up to its own. A branching node sees those up to the last pending token, and the
    # columns of its ancestors, added below.
    causal = np.ones(size, np.int64)
    causal[local] = step.causal[rows]
    query = np.where(np.arange(width) < causal[:, None], np.arange(width), pending[:, None] - 1)
    sees = np.arange(length)[None, None] <= (base[:, None] + query)[:, :, None]
    index = np.full(len(step.slot), -1, np.int64)
    index[rows] = local
    node_row = np.searchsorted(step.draft.offsets, step.branching, side="right") - 1
    mine = np.flatnonzero(index[node_row] >= 0)
    if len(mine):
        nth, other = np.nonzero(step.ancestors[mine])
        of = node_row[mine[nth]]
        node = step.branching[mine[nth]] - step.draft.offsets[of]
        sees[index[of], step.pending[of] + node, step.computed[of] + step.pending[of] + other] = True
    return sees


def _to(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
