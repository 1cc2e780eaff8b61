"""Live turns whose drafts are chains, as records: what a step does with all of them, compiled.

``read`` takes the tokens of a step, each turn's own, and finds the turns that end with them; ``go_on`` passes tokens
on to the store and drafts. Between the two a caller decides how much is drafted, and ends turns.

Invariant: a turn's tokens are held in the order in which they were sampled until the store has them, and it
gets each once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.kernels.batch import draft, extend
from turntree.spec_tree.kernels.compiled import int64, kernel, part, short_kernel
from turntree.spec_tree.kernels.growth import AGAIN_VOTERS, FEW_ROWS
from turntree.spec_tree.kernels.instructions import add
from turntree.spec_tree.kernels.layout import DraftLimits, DraftNodes, DraftSources, Weights

CHAIN = np.dtype(
    [
        ("live", np.int32),  # 1 until the turn is over
        ("row", np.int64),  # its row of ``LiveTurns``
        ("prompt", np.int32),  # tokens of its prompt
        ("committed", np.int32),  # its own tokens so far
        ("least", np.int32),  # tokens before which no stop token ends it
        ("most", np.int32),  # tokens at most
        ("held", np.int32),  # its last tokens that the store does not have yet
        ("drafted", np.int32),  # tokens proposed for the coming step
        ("by_turn_draft", np.int32),  # 1 where the proposal is from the caller's draft
        ("turn_draft", np.int64),  # where this begins in ``Chains.turn_drafts``
        ("turn_drafted", np.int32),  # its length; 0 once another token was sampled
        ("asked", np.int64),  # the last step after which drafts were asked for
        ("step", np.int64),  # the last step in which it sampled
        ("verify_steps", np.int64),  # steps in which it sampled
        ("offered", np.int64),  # draft tokens that were verified
        ("accepted", np.int64),  # of these, tokens that the policy sampled
    ],
    align=True,
)
"""A turn."""


class Chains(NamedTuple):
    """The turns by slot, which is the first axis of every array but ``turn_drafts``."""

    records: NDArray[np.void]
    """Of type ``CHAIN``, shape (slots,)."""
    held: NDArray[np.int32]
    """Tokens that the store does not have yet, shape (slots, room)."""
    stops: NDArray[np.int32]
    """Tokens that end the turn, -1 after the last, shape (slots, most of a turn)."""
    turn_drafts: NDArray[np.int32]
    """Guesses of callers, one after the other."""
    estimates: NDArray[np.float32]
    """Probability, by the store, that the proposal is accepted up to a token, shape (slots, longest draft)."""
    waiting: NDArray[np.int32]
    """Slots that hold tokens, in the order in which they began to, shape (slots,)."""


class Read(NamedTuple):
    """What ``read`` found, as numbers."""

    most: int
    """Most tokens that a turn would hold; where they do not fit, nothing was done."""
    waiting: int
    """Slots in ``Chains.waiting``."""
    rows: int
    """Requests that sampled, those of turns that were over before included."""
    live: int
    """Turns that sampled and go on."""
    tokens: int
    """Tokens of theirs."""
    ended: int
    """Turns that these ended."""
    turn_drafted: int
    """Tokens of drafts that may be proposed."""
    asked: int
    """Turns that sampled and for which drafts were asked for after the step before."""
    by_turn_draft: int
    """Of these, those whose proposal was a draft."""
    verified: int
    """Draft tokens of the store that were verified."""


class Verdicts(NamedTuple):
    """Room for what a step verified."""

    ended: NDArray[np.int32]
    """Slots of the turns that it ended, shape (rows,)."""
    estimates: NDArray[np.float32]
    """The store's estimate of each verified token, shape (rows * longest,)."""
    accepted: NDArray[np.bool_]
    """Whether the policy sampled it, shape (rows * longest,)."""


@part
def _is_stop(token: int, stops: NDArray[np.int32]) -> bool:
    for stop in stops:
        if stop == token:
            return True
        if stop < 0:
            break
    return False


@part
def _span(turn: Any, b: int, tokens: NDArray[np.int32], ends: NDArray[np.int32]) -> tuple[int, int]:
    """Where the new tokens of row ``b`` stand."""
    if len(ends) > 0:
        return int64(turn.prompt + turn.committed), int64(ends[b])
    stop: int = int64(0)
    while stop < tokens.shape[1] and tokens[b, stop] >= 0:
        stop += 1
    return int64(0), stop


@part
def _guess(turn: Any, most: int, turn_drafts: NDArray[np.int32], stops: NDArray[np.int32]) -> int:
    """How many next tokens of a turn's draft may be proposed: up to ``most`` and to a stop token."""
    count = max(min(int64(turn.turn_drafted - turn.committed), int64(turn.most - turn.committed - 1), most), int64(0))
    for i in range(count):
        if _is_stop(turn_drafts[turn.turn_draft + turn.committed + i], stops):
            return i + 1
    return count


@short_kernel
def read(
    slots: NDArray[np.int32],
    tokens: NDArray[np.int32],
    ends: NDArray[np.int32],
    step: int,
    waiting: int,
    chains: Chains,
    out: Verdicts,
) -> tuple[int, ...]:
    """Take the tokens sampled in a step.

    Args:
        slots: Slot of each request, -1 for one without, shape (rows,).
        tokens: With ``ends``, each request's prompt and tokens, else its new tokens, -1 after the last, shape
            (rows, any).
        ends: Tokens of each request, 0 where it sampled nothing, shape (rows,); empty where ``tokens`` are new.
        waiting: Slots in ``Chains.waiting``.

    Returns:
        The fields of ``Read``.
    """
    records, held, longest = chains.records, chains.held, chains.estimates.shape[1]
    most: int = int64(0)
    for b in range(len(slots)):
        if slots[b] >= 0 and records[slots[b]].live:
            begin, stop = _span(records[slots[b]], b, tokens, ends)
            most = max(most, records[slots[b]].held + stop - begin)
    rows, live, new, ended, turn_drafted = int64(0), int64(0), int64(0), int64(0), int64(0)
    asked, by_turn_draft, verified = int64(0), int64(0), int64(0)
    if most > held.shape[1]:
        return most, waiting, rows, live, new, ended, turn_drafted, asked, by_turn_draft, verified
    for b in range(len(slots)):
        slot = int64(slots[b])
        if slot < 0:
            continue
        turn, stops = records[slot], chains.stops[slot]
        begin, stop = _span(turn, b, tokens, ends)
        if stop <= begin:
            continue
        rows += 1
        if not turn.live:
            continue
        count, first, over = int64(0), int64(turn.held), False
        while begin + count < stop and not over:
            token = tokens[b, begin + count]
            held[slot, first + count] = token
            count += 1
            length = turn.committed + count
            over = length >= turn.most or (length >= turn.least and _is_stop(token, stops))
        if step != turn.step + 1:
            turn.drafted = 0  # proposed before a pause, and never verified
        hits = min(count - 1, int64(turn.drafted))
        turn.step = step
        turn.verify_steps += 1
        turn.offered += turn.drafted
        turn.accepted += hits
        if turn.asked == step - 1:
            asked += 1
            by_turn_draft += turn.by_turn_draft
            for i in range(0 if turn.by_turn_draft else turn.drafted):
                out.estimates[verified], out.accepted[verified] = chains.estimates[slot, i], i < hits
                verified += 1
        turn.drafted = 0
        if turn.turn_drafted:
            at = turn.turn_draft + turn.committed
            same = turn.committed + count <= turn.turn_drafted
            for i in range(count if same else 0):
                same = same and chains.turn_drafts[at + i] == held[slot, first + i]
            turn.turn_drafted = turn.turn_drafted if same else 0
        if first == 0:
            chains.waiting[waiting] = slot
            waiting += 1
        turn.held += count
        turn.committed += count
        new += count
        if over:
            turn.live = 0
            out.ended[ended] = slot
            ended += 1
        else:
            live += 1
            if turn.turn_drafted > turn.committed:
                turn_drafted += _guess(turn, longest, chains.turn_drafts, stops)
    return most, waiting, rows, live, new, ended, turn_drafted, asked, by_turn_draft, verified


class Space(NamedTuple):
    """Room to work in, for the turns that are drafted for."""

    places: NDArray[np.int64]
    """Row of each in the batch, shape (rows or more,); so the next three."""
    live: NDArray[np.int64]
    """Its row of ``LiveTurns``."""
    room: NDArray[np.int64]
    """Greatest length of its draft."""
    nodes: NDArray[np.int64]
    """Length of its draft."""
    paths: NDArray[np.float32]
    """Probabilities of all tokens, to be sorted, shape (rows * longest,)."""


class Proposals(NamedTuple):
    """Where ``go_on`` writes drafts, and how many it may."""

    drafts: NDArray[np.int32]
    """Tokens of each request's draft, -1 after the last, shape (rows, any)."""
    counts: NDArray[np.int32]
    """How many, shape (rows,)."""
    widths: NDArray[np.int32]
    """How many at most, shape (rows,); empty where the longest draft bounds all alike."""
    turn_drafted: int
    """Most tokens of callers' drafts of all requests together."""
    most: int
    """Most tokens of the store's drafts of all requests together, the most probable ones."""
    nodes: DraftNodes
    """Room for the longest draft of each request."""
    space: Space
    """Room to work in."""


COUNT, NEXT, DONE = 0, 1, 2
"""Of the turns that threads share: how many, -1 where there is nothing to do; parts taken; parts done."""
PART = 16
"""Turns that a thread takes at once, as many as ``prefetch_rows`` prefetches for together."""


@kernel
def go_on(
    due: NDArray[np.int32],
    slots: NDArray[np.int32],
    step: int,
    limits: DraftLimits,
    chains: Chains,
    turns: NDArray[np.void],
    sources: DraftSources,
    weights: Weights,
    head: NDArray[np.int64],
    work: NDArray[np.void],
    out: Proposals,
    share: NDArray[np.int64],
) -> tuple[int, int]:
    """Pass the held tokens of ``due`` on to the store, then draft for the turns of ``slots`` that sampled in ``step``.

    Args:
        due: Slots, shape (any,); the log from ``head[0]`` on is free for their tokens and a piece more for each.
        slots: Slot of each request of the step, -1 for one without, shape (rows,).
        turns: Those of the store, of type ``LIVE_TURN``.
        head: Where the log is written next.
        work: Room to work in, a ``SCRATCH``, shape (1,).
        out: Filled; a row without a draft as well.
        share: Zeros, shape (3,), by which ``help_out`` takes a part.

    Returns:
        Accepted tokens of the store's drafts, and drafted ones.
    """
    accepted: int = int64(0)
    for i in range(len(due)):
        turn = chains.records[due[i]]
        if turn.held:
            new = chains.held[due[i], : turn.held]
            accepted += extend(turns[turn.row], new, sources, weights[0], head)
            turn.held = 0
    count, most = _propose_turn_drafts(slots, step, limits.budget, chains, out), out.most
    if most <= 0 or count == 0:
        add(share, int64(COUNT), int64(-1))
        return accepted, int64(0)
    add(share, int64(COUNT), count)
    _draft_parts(share, limits, turns, sources, weights, work, out)
    while add(share, int64(DONE), int64(0)) * PART < count:
        pass
    drafted: int = int64(0)
    for c in range(count):
        drafted += out.space.nodes[c]
    if drafted > most:
        _keep_most_probable(most, drafted, count, limits.budget, turns, out.nodes.paths, out.space)
        drafted = most
    _write(count, limits.budget, slots, chains, turns, out)
    return accepted, drafted


@kernel
def help_out(
    share: NDArray[np.int64],
    limits: DraftLimits,
    turns: NDArray[np.void],
    sources: DraftSources,
    weights: Weights,
    work: NDArray[np.void],
    out: Proposals,
) -> None:
    """Draft a part of what ``go_on`` with the same ``share`` drafts, on another thread, with ``work`` of its own.

    It waits for that call. One that comes too late finds nothing to do: the parts go to whoever asks first.
    """
    count: int = int64(0)
    while count == 0:
        count = add(share, int64(COUNT), int64(0))
    if count > 0:
        _draft_parts(share, limits, turns, sources, weights, work, out)


@part
def _draft_parts(
    share: NDArray[np.int64],
    limits: DraftLimits,
    turns: NDArray[np.void],
    sources: DraftSources,
    weights: Weights,
    work: NDArray[np.void],
    out: Proposals,
) -> None:
    """Draft for ``PART`` turns after others, until none is left that no thread took."""
    count, space = add(share, int64(COUNT), int64(0)), out.space
    work[0].again = AGAIN_VOTERS if count <= FEW_ROWS else -1
    first: int = add(share, int64(NEXT), int64(1)) * PART
    while first < count:
        live, room = space.live[first : first + PART], space.room[first : first + PART]
        own = space.nodes[first : first + PART]
        last = min(first + PART, count) - first
        at = first * limits.budget
        draft(live[:last], room[:last], limits, turns, sources, weights, work, out.nodes, at, own[:last])
        add(share, int64(DONE), int64(1))
        first = add(share, int64(NEXT), int64(1)) * PART


@part
def _propose_turn_drafts(slots: NDArray[np.int32], step: int, longest: int, chains: Chains, out: Proposals) -> int:
    """Propose the drafts of callers; returns how many turns the store may draft for, listed in ``out``."""
    count, left = int64(0), out.turn_drafted
    for b in range(len(slots)):
        slot = int64(slots[b])
        out.counts[b] = 0
        for i in range(out.drafts.shape[1]):
            out.drafts[b, i] = -1
        if slot < 0 or not chains.records[slot].live or chains.records[slot].step != step:
            continue
        turn = chains.records[slot]
        room = min(int64(longest), int64(turn.most - turn.committed - 1))
        if len(out.widths) > 0:
            room = min(room, int64(out.widths[b]))
        room = max(room, int64(0))
        turn.by_turn_draft, turn.asked = 0, step
        if turn.turn_drafted > turn.committed:
            own = _guess(turn, min(room, left), chains.turn_drafts, chains.stops[slot])
            for i in range(own):
                out.drafts[b, i] = chains.turn_drafts[turn.turn_draft + turn.committed + i]
            if own > 0:
                out.counts[b] = turn.drafted = own
                turn.by_turn_draft = 1
                left -= own
                room = int64(0)
        out.space.places[count], out.space.live[count], out.space.room[count] = b, turn.row, room
        count += 1
    return count


@part
def _keep_most_probable(
    most: int,
    drafted: int,
    count: int,
    longest: int,
    turns: NDArray[np.void],
    paths: NDArray[np.float32],
    space: Space,
) -> None:
    """Shorten drafts to the ``most`` most probable tokens; of equals the first stay.

    A path is never more probable than the path before it, so that each draft keeps its beginning.
    """
    start, filled = int64(0), int64(0)
    for c in range(count):
        start = c * longest if c % PART == 0 else start
        for i in range(space.nodes[c]):
            space.paths[filled] = paths[start + i]
            filled += 1
        start += space.nodes[c]
    edge = _nth_greatest(space.paths, drafted, most)
    equals = most
    for i in range(drafted):
        equals -= 1 if space.paths[i] > edge else 0
    for c in range(count):
        start = c * longest if c % PART == 0 else start
        kept, length = int64(0), space.nodes[c]
        while kept < length and (paths[start + kept] > edge or (paths[start + kept] == edge and equals > 0)):
            equals -= 1 if paths[start + kept] == edge else 0
            kept += 1
        turns[space.live[c]].drafted = kept  # the rest is left where it is: what follows begins behind it
        start += length


@part
def _nth_greatest(values: NDArray[np.float32], count: int, nth: int) -> np.float32:
    """The ``nth`` greatest, from 1 on, of the first ``count`` values, which it reorders (quickselect)."""
    low, high, at = int64(0), int64(count - 1), int64(nth - 1)
    while low < high:
        pivot, i, j = values[(low + high) // 2], low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if at <= j:
            high = j
        elif at >= i:
            low = i
        else:
            break
    value: np.float32 = values[at]
    return value


@part
def _write(
    count: int,
    longest: int,
    slots: NDArray[np.int32],
    chains: Chains,
    turns: NDArray[np.void],
    out: Proposals,
) -> None:
    """Write the store's drafts, each up to its first stop token, with their estimates."""
    start, nodes = int64(0), out.nodes
    for c in range(count):
        start = c * longest if c % PART == 0 else start
        b = out.space.places[c]
        slot = int64(slots[b])
        turn, stops = chains.records[slot], chains.stops[slot]
        kept, length, over = int64(turns[turn.row].drafted), int64(0), False
        while length < kept and not over:
            token = nodes.tokens[start + length]
            out.drafts[b, length], chains.estimates[slot, length] = token, nodes.paths[start + length]
            over = _is_stop(token, stops)
            length += 1
        if length > 0:
            out.counts[b] = turn.drafted = length
        start += out.space.nodes[c]
