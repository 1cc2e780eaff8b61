"""Live turns (begun, not ended) whose drafts are chains: the compiled work of one step for all of them.

``read`` takes the tokens sampled in a step and finds the turns that end with these tokens. ``advance`` passes tokens to
the draft store and drafts. Between the two calls, the caller decides how much is drafted, and ends turns.

Sampled tokens that the draft store has not received yet are called held. They keep their order, and the store receives
each token once. A turn-level draft (``turn_draft``) is a whole earlier turn that the caller offers.
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
        ("row", np.int64),  # row of the turn in ``LiveTurns``
        ("prompt", np.int32),  # tokens of its prompt
        ("committed", np.int32),  # tokens sampled so far
        ("least", np.int32),  # minimum tokens of the turn: no stop token ends it earlier
        ("most", np.int32),  # maximum tokens of the turn
        ("held", np.int32),  # number of last tokens that the draft store does not have yet
        ("drafted", np.int32),  # tokens proposed for the coming step
        ("by_turn_draft", np.int32),  # 1 if the proposal is the turn-level draft
        ("turn_draft", np.int64),  # start of the turn-level draft in ``Chains.turn_drafts``
        ("turn_drafted", np.int32),  # length of the turn-level draft; 0 once the policy sampled a different token
        ("asked", np.int64),  # the last step after which the turn asked for a draft
        ("step", np.int64),  # the last step in which the turn sampled
        ("verify_steps", np.int64),  # steps in which the turn sampled
        ("offered", np.int64),  # draft tokens that were verified
        ("accepted", np.int64),  # verified draft tokens that the policy sampled
    ],
    align=True,
)


class Chains(NamedTuple):
    """The turns by slot, the first axis of every array but ``turn_drafts``."""

    records: NDArray[np.void]  #: dtype ``CHAIN``, shape (slots,)
    held: NDArray[np.int32]  #: tokens that the draft store does not have yet, shape (slots, capacity)
    stops: NDArray[np.int32]  #: tokens that end the turn, -1 after the last, shape (slots, maximum per turn)
    turn_drafts: NDArray[np.int32]  #: turn-level drafts, one after another
    #: probability that the proposal is accepted up to and including each token, shape (slots, longest draft)
    estimates: NDArray[np.float32]
    waiting: NDArray[np.int32]  #: slots with held tokens, in the order of their first held token, shape (slots,)


class Read(NamedTuple):
    """The result of ``read``."""

    most: int  #: tokens that the fullest turn would hold; if this exceeds the capacity, nothing was done
    waiting: int  #: number of slots in ``Chains.waiting``
    rows: int  #: requests that sampled, including requests whose turn was over
    live: int  #: turns that sampled and continue
    tokens: int  #: tokens of the turns that sampled
    ended: int  #: turns that ended
    turn_drafted: int  #: tokens of turn-level drafts that may be proposed
    asked: int  #: turns that sampled in this step and had asked for a draft after the step before
    by_turn_draft: int  #: turns whose proposal was a turn-level draft
    verified: int  #: verified draft tokens that came from the store


class Verdicts(NamedTuple):
    """Output buffers of ``read``."""

    ended: NDArray[np.int32]  #: slots of the turns that ended, shape (rows,)
    estimates: NDArray[np.float32]  #: the store's estimate for each verified token, shape (rows * longest,)
    accepted: NDArray[np.bool_]  #: whether the policy sampled the token, shape (rows * longest,)


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
    # First and last column of the new tokens of row `b`.
    if len(ends) > 0:
        return int64(turn.prompt + turn.committed), int64(ends[b])
    stop: int = int64(0)
    while stop < tokens.shape[1] and tokens[b, stop] >= 0:
        stop += 1
    return int64(0), stop


@part
def _draft_left(turn: Any, most: int, turn_drafts: NDArray[np.int32], stops: NDArray[np.int32]) -> int:
    # How many tokens of the turn-level draft may be proposed: up to `most`, the turn's limit, and a stop token. The
    # step samples one more token after the draft, so subtract 1.
    count = max(min(int64(turn.turn_drafted - turn.committed), int64(turn.most - turn.committed - 1), most), int64(0))
    for i in range(count):
        if _is_stop(turn_drafts[turn.turn_draft + turn.committed + i], stops):
            return i + 1
    return count


@part
def _most_held(slots: NDArray[np.int32], tokens: NDArray[np.int32], ends: NDArray[np.int32], chains: Chains) -> int:
    most: int = int64(0)
    for b in range(len(slots)):
        if slots[b] >= 0 and chains.records[slots[b]].live:
            begin, stop = _span(chains.records[slots[b]], b, tokens, ends)
            most = max(most, chains.records[slots[b]].held + stop - begin)
    return most


@part
def _take(
    turn: Any, tokens: NDArray[np.int32], begin: int, stop: int, held: NDArray[np.int32], stops: NDArray[np.int32]
) -> tuple[int, bool]:
    # Append new tokens to the held tokens up to the end of the turn; vLLM may have sampled tokens after the end.
    count, first, over = int64(0), int64(turn.held), False
    while begin + count < stop and not over:
        token = tokens[begin + count]
        held[first + count] = token
        count += 1
        length = turn.committed + count
        over = length >= turn.most or (length >= turn.least and _is_stop(token, stops))
    return count, over


@part
def _record_verdicts(turn: Any, slot: int, hits: int, verified: int, chains: Chains, out: Verdicts) -> int:
    # Skip turn-level drafts: their acceptance says nothing about the store's estimates.
    for i in range(0 if turn.by_turn_draft else turn.drafted):
        out.estimates[verified], out.accepted[verified] = chains.estimates[slot, i], i < hits
        verified += 1
    return verified


@part
def _follows_draft(turn: Any, slot: int, count: int, chains: Chains) -> bool:
    # Whether `count` new tokens, not counted in the record yet, agree with the turn-level draft.
    at, first = turn.turn_draft + turn.committed, int64(turn.held)
    same = turn.committed + count <= turn.turn_drafted
    for i in range(count if same else 0):
        same = same and chains.turn_drafts[at + i] == chains.held[slot, first + i]
    return same


@short_kernel
def read(
    slots: NDArray[np.int32],  # slot of each request, -1 for none, shape (rows,)
    tokens: NDArray[np.int32],  # (rows, any): with `ends` prompt and tokens, else new tokens, -1 after the last
    ends: NDArray[np.int32],  # tokens of each request, 0 if it sampled nothing; empty if `tokens` are new tokens
    step: int,
    waiting: int,  # number of slots in `Chains.waiting`
    chains: Chains,
    out: Verdicts,
) -> tuple[int, ...]:
    """Take the tokens sampled in a step; return the fields of ``Read``, and fill ``out``."""
    records, held, longest = chains.records, chains.held, chains.estimates.shape[1]
    most = _most_held(slots, tokens, ends, chains)
    rows, live, new, ended, turn_drafted = int64(0), int64(0), int64(0), int64(0), int64(0)
    asked, by_turn_draft, verified = int64(0), int64(0), int64(0)
    if most > held.shape[1]:  # change nothing: the caller enlarges the buffer and calls again
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
            continue  # an asynchronous engine runs a finished turn for one more step
        first = int64(turn.held)
        count, over = _take(turn, tokens[b], begin, stop, held[slot], stops)
        if step != turn.step + 1:
            turn.drafted = 0  # proposed before a pause, and never verified
        # A step emits the accepted draft tokens and one more token.
        hits = min(count - 1, int64(turn.drafted))
        turn.step = step
        turn.verify_steps += 1
        turn.offered += turn.drafted
        turn.accepted += hits
        if turn.asked == step - 1:
            asked += 1
            by_turn_draft += turn.by_turn_draft
            verified = _record_verdicts(turn, slot, hits, verified, chains, out)
        turn.drafted = 0
        if turn.turn_drafted:
            same = _follows_draft(turn, slot, count, chains)
            turn.turn_drafted = turn.turn_drafted if same else 0
        if first == 0:  # the turn held nothing, so it was not waiting yet
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
                turn_drafted += _draft_left(turn, longest, chains.turn_drafts, stops)
    return most, waiting, rows, live, new, ended, turn_drafted, asked, by_turn_draft, verified


class Space(NamedTuple):
    """Working memory for the turns that are drafted for."""

    rows: NDArray[np.int64]  #: row of each turn in the batch, shape (rows or more,), as the next three arrays
    live: NDArray[np.int64]  #: row of each turn in ``LiveTurns``
    room: NDArray[np.int64]  #: maximum draft length of each turn
    nodes: NDArray[np.int64]  #: draft length of each turn
    paths: NDArray[np.float32]  #: probabilities of all tokens, to be sorted, shape (rows * longest,)


class Proposals(NamedTuple):
    """Limits and output buffers of ``advance``."""

    drafts: NDArray[np.int32]  #: tokens of each request's draft, -1 after the last, shape (rows, any)
    counts: NDArray[np.int32]  #: draft length of each request, shape (rows,)
    widths: NDArray[np.int32]  #: maximum draft length of each request, shape (rows,); empty: the longest draft for all
    turn_drafted: int  #: maximum tokens of turn-level drafts, all requests together
    most: int  #: maximum tokens of the store's drafts, all requests together
    nodes: DraftNodes  #: buffer for the longest draft of each request
    space: Space


class DraftStore(NamedTuple):
    """The arrays of a forest that ``advance`` works on."""

    limits: DraftLimits
    turns: NDArray[np.void]  #: live turns of the forest, dtype ``LIVE_TURN``
    sources: DraftSources
    weights: Weights
    head: NDArray[np.int64]  #: position where the log is written next, shape (1,)


#: Indices into the array `share`, by which threads divide the turns into parts of ``PART`` turns. ``COUNT``: number of
#: turns (-1: nothing to do); ``NEXT``: parts taken by a thread; ``DONE``: parts finished.
COUNT, NEXT, DONE = 0, 1, 2
PART = 16  #: turns that a thread takes at once, as many as ``prefetch_rows`` prefetches together


@kernel
def advance(
    due: NDArray[np.int32],  # slots; the log has free positions for their tokens and one more piece for each
    slots: NDArray[np.int32],  # slot of each request of the step, -1 for none, shape (rows,)
    step: int,
    chains: Chains,
    store: DraftStore,
    work: NDArray[np.void],  # a `SCRATCH` to work in, shape (1,)
    out: Proposals,
    share: NDArray[np.int64],  # zeros, shape (3,); coordinates this call with `help_out`
) -> tuple[int, int]:
    """Pass the held tokens of ``due`` to the draft store, then draft for turns that sampled in ``step``.

    Fills ``out``, also for rows without a draft. Returns two counts: accepted tokens of the store's drafts, and newly
    drafted tokens.
    """
    limits, turns, sources, weights = store.limits, store.turns, store.sources, store.weights
    accepted: int = int64(0)
    # Commit all tokens before drafting: turns of one batch draft from each other's newest tokens.
    for i in range(len(due)):
        turn = chains.records[due[i]]
        if turn.held:
            new = chains.held[due[i], : turn.held]
            accepted += extend(turns[turn.row], new, sources, weights[0], store.head)
            turn.held = 0
    count, most = _propose_turn_drafts(slots, step, limits.budget, chains, out), out.most
    if most <= 0 or count == 0:
        add(share, int64(COUNT), int64(-1))
        return accepted, int64(0)
    add(share, int64(COUNT), count)
    _draft_parts(share, limits, turns, sources, weights, work, out)
    # Adding 0 is an atomic read. The last parts take microseconds, so busy waiting is fastest.
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
    """Draft parts of the turns of the ``advance`` call with the same ``share``, on another thread.

    Waits until that call starts. Each part goes to the first thread that asks, so a late thread may get no part.
    """
    count: int = int64(0)
    while count == 0:  # until `advance` knows the number of turns
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
    count, space = add(share, int64(COUNT), int64(0)), out.space
    work[0].again = AGAIN_VOTERS if count <= FEW_ROWS else -1
    first: int = add(share, int64(NEXT), int64(1)) * PART
    while first < count:
        live, room = space.live[first : first + PART], space.room[first : first + PART]
        lengths = space.nodes[first : first + PART]
        last = min(first + PART, count) - first
        at = first * limits.budget  # each part has its own span of the nodes, whichever thread takes it
        draft(live[:last], room[:last], limits, turns, sources, weights, work, out.nodes, at, lengths[:last])
        add(share, int64(DONE), int64(1))
        first = add(share, int64(NEXT), int64(1)) * PART


@part
def _propose_turn_drafts(slots: NDArray[np.int32], step: int, longest: int, chains: Chains, out: Proposals) -> int:
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
            drafted = _draft_left(turn, min(room, left), chains.turn_drafts, chains.stops[slot])
            for i in range(drafted):
                out.drafts[b, i] = chains.turn_drafts[turn.turn_draft + turn.committed + i]
            if drafted > 0:
                out.counts[b] = turn.drafted = drafted
                turn.by_turn_draft = 1
                left -= drafted
                room = int64(0)  # the store drafts nothing in addition
        out.space.rows[count], out.space.live[count], out.space.room[count] = b, turn.row, room
        count += 1
    return count


@part
def _keep_most_probable(
    most: int, drafted: int, count: int, longest: int, turns: NDArray[np.void], paths: NDArray[np.float32], space: Space
) -> None:
    # A path is never more probable than its beginning, so cutting improbable tokens leaves the beginning of each draft.
    # Nodes of a part are packed, and each part starts at its own multiple of the budget.
    start, filled = int64(0), int64(0)
    for c in range(count):
        start = c * longest if c % PART == 0 else start
        for i in range(space.nodes[c]):
            space.paths[filled] = paths[start + i]
            filled += 1
        start += space.nodes[c]
    edge = _nth_greatest(space.paths, drafted, most)
    equals = most  # how many tokens with exactly the edge probability may stay, the first ones
    for i in range(drafted):
        equals -= 1 if space.paths[i] > edge else 0
    for c in range(count):
        start = c * longest if c % PART == 0 else start
        kept, length = int64(0), space.nodes[c]
        while kept < length and (paths[start + kept] > edge or (paths[start + kept] == edge and equals > 0)):
            equals -= 1 if paths[start + kept] == edge else 0
            kept += 1
        turns[space.live[c]].drafted = kept  # the cut nodes stay in the buffer, so the next draft starts after them
        start += length


@part
def _nth_greatest(values: NDArray[np.float32], count: int, nth: int) -> np.float32:
    # Quickselect; reorders `values`. `nth` counts from 1.
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
    count: int, longest: int, slots: NDArray[np.int32], chains: Chains, turns: NDArray[np.void], out: Proposals
) -> None:
    # Each draft is written up to its first stop token.
    start, nodes = int64(0), out.nodes
    for c in range(count):
        start = c * longest if c % PART == 0 else start
        b = out.space.rows[c]
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
