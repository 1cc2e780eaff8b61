"""Running turns, kept in arrays, of an engine whose drafts are chains: one continuation per turn, no tree.

In a step in which no turn begins or ends, compiled code does all per-row work without the GIL: ``read`` takes the
step's tokens, and ``propose`` passes them to the draft store and writes the next drafts. A turn ends here at its
maximum length or a stop token. Tokens after that are ignored: an engine with asynchronous scheduling may keep the turn
in its batch for another step.

Not thread-safe. Drafts change how many passes a turn takes, never its tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.drafting.session import HELD_STEPS
from turntree.spec_tree import DialogueState, DraftBatch, ForestConfig, SpecForest
from turntree.spec_tree.budget.draft_budget import Allowance
from turntree.spec_tree.kernels.layout import DraftLimits, DraftNodes
from turntree.spec_tree.store.chains import CHAIN, Chains, Proposals, Read, Space, Verdicts, help_out, read
from turntree.spec_tree.store.proposal import own_work

_FIRST_SLOTS, _FIRST_HELD = 256, 64
_NO_ENDS = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTurn:
    """A turn that begins to be sampled."""

    state: DialogueState
    prompt: Sequence[int]  #: token ids
    most: int  #: maximum tokens of the turn
    least: int = 0  #: minimum tokens before a stop token ends the turn
    stops: frozenset[int] = frozenset()  #: stop tokens
    turn_draft: Sequence[int] = ()  #: the caller's draft of the whole turn, from its first token


class StepResult(NamedTuple):
    """Outcome of a step; its arrays are valid until the next ``read``."""

    rows: int  #: requests that sampled
    live: int  #: turns among these requests that continue
    tokens: int  #: new tokens of all turns
    turn_drafted: int  #: tokens of callers' drafts that may be proposed next
    ended: NDArray[np.int32]  #: slots of the turns that ended, shape (turns,)
    estimates: NDArray[np.float32]  #: the store's estimate of each of its verified draft tokens, shape (tokens,)
    accepted: NDArray[np.bool_]  #: whether the policy sampled each of these, shape (tokens,)
    whole: bool  #: whether each turn with requested drafts sampled, and no draft was a caller's


class Counters(NamedTuple):
    """Counters of one turn."""

    verify_steps: int  #: steps in which the turn sampled
    offered: int  #: draft tokens that were verified
    accepted: int  #: draft tokens that the policy itself sampled


class ChainRows:
    """Begins, reads, drafts, ends and counts turns, each identified by its slot."""

    def __init__(self, forest: SpecForest, longest: int) -> None:
        self._forest = forest
        self._longest = longest
        self._step = 0
        self._asked = 0  #: turns for which drafts were requested after the last step
        self._live = 0
        self._waiting = self._held = 0  #: turns with tokens that the store lacks, and the number of these
        self._held_steps = 0  #: steps since the store got tokens; ``HELD_STEPS`` makes the next step pass them on
        self._ended: NDArray[np.int32] = _NO_ENDS
        self._new: list[int] = []  #: slots of turns that the store does not know yet
        self._turns: dict[int, ChainTurn] = {}
        self._handles: dict[int, int] = {}  #: the store's handles of live turns, by slot
        self._free: list[int] = []  #: unused slots
        self._turn_draft_end = 0  #: end of the used part of ``Chains.turn_drafts``
        self._chains = Chains(
            records=np.zeros(0, CHAIN),
            held=np.zeros((0, _FIRST_HELD), np.int32),
            stops=np.zeros((0, 1), np.int32),
            turn_drafts=np.zeros(1, np.int32),
            estimates=np.zeros((0, longest), np.float32),
            waiting=np.zeros(0, np.int32),
        )
        self._most_rows = -1  #: rows for which the working arrays have space
        self._make_room(0)

    def begin(self, turns: Sequence[ChainTurn]) -> list[int]:
        """Add turns and return their slots; the store learns of them at the next ``propose``."""
        slots = []
        for turn in turns:
            if not self._free:
                self._more_slots()
            slot = self._free.pop()
            stops = sorted(turn.stops)
            if len(stops) > self._chains.stops.shape[1]:
                self._chains = self._chains._replace(stops=_wider(self._chains.stops, len(stops)))
            self._chains.stops[slot] = -1
            self._chains.stops[slot, : len(stops)] = stops
            record = np.zeros((), CHAIN)
            record["live"], record["prompt"] = 1, len(turn.prompt)
            record["least"], record["most"] = turn.least, turn.most
            # -2 is neither a step nor the step before one, so it marks a turn that has not sampled yet.
            record["step"] = record["asked"] = -2
            record["turn_draft"], record["turn_drafted"] = self._keep_turn_draft(turn.turn_draft), len(turn.turn_draft)
            self._chains.records[slot] = record
            self._turns[slot] = turn
            slots.append(slot)
        self._new += slots
        return slots

    def read(
        self, slots: NDArray[np.int32], tokens: NDArray[np.int32], ends: NDArray[np.int32] | None = None
    ) -> StepResult:
        """Take the tokens of a step; tokens after the end of a turn are ignored.

        Args:
            slots: Slot of each row of the batch, -1 for none, shape (rows,).
            tokens: New tokens, -1 after the last, shape (rows or more, any); with ``ends``, prompts and all tokens.
            ends: Length of prompt and tokens of each row, 0 if the row sampled nothing, shape (rows,).
        """
        self._step += 1
        self._make_room(len(slots))
        given = slots, tokens, _NO_ENDS if ends is None else ends, self._step, self._waiting
        found = Read(*read(*given, self._chains, self._verdicts))
        # ``held`` has each turn's tokens that the store lacks. If they do not fit, ``read`` has changed nothing: widen
        # ``held`` and read again.
        if found.most > self._chains.held.shape[1]:
            self._chains = self._chains._replace(held=_wider(self._chains.held, found.most))
            found = Read(*read(*given, self._chains, self._verdicts))
        self._waiting = found.waiting
        self._held += found.tokens
        self._live, self._ended = found.live, self._verdicts.ended[: found.ended]
        return StepResult(
            rows=found.rows,
            live=found.live,
            tokens=found.tokens,
            turn_drafted=found.turn_drafted,
            ended=self._ended,
            estimates=self._verdicts.estimates[: found.verified],
            accepted=self._verdicts.accepted[: found.verified],
            whole=0 < found.asked == self._asked and not found.by_turn_draft,
        )

    def read_singly(self, slots: NDArray[np.int32], tokens: NDArray[np.int32]) -> StepResult:
        """Read several steps without drafts at once, in each of which every turn sampled one token.

        ``tokens`` has shape (rows, steps).
        """
        known, records = slots[slots >= 0], self._chains.records
        before = records["committed"][known]
        found = self.read(slots, tokens)
        # ``read`` counts one step. Add the other steps in which each turn still sampled.
        records["verify_steps"][known] += np.maximum(records["committed"][known] - before - 1, 0)
        return found

    def propose(
        self,
        slots: NDArray[np.int32],
        drafts: NDArray[np.int32],
        counts: NDArray[np.int32],
        *,
        allowed: Allowance | None,
        most: int | None = None,
        widths: NDArray[np.int32] | None = None,
    ) -> None:
        """Pass the tokens of ``read`` to the store, close ended turns in the store, and write the next drafts.

        While nothing is drafted, the store gets the tokens of several steps at once.

        Args:
            drafts: Filled, -1 after the last token, shape (rows, at least the maximum draft length).
            counts: Filled with the draft lengths, shape (rows,).
            allowed: Limits of the store's drafts; ``None`` proposes nothing, not even callers' drafts.
            most: Maximum tokens of callers' drafts of all rows together; ``None`` is no bound.
            widths: Maximum length of each draft, shape (rows,).

        Raises:
            UnknownTurn: If the store was cleared while turns were live.
        """
        # Raises UnknownTurn if the store was cleared; checking one handle is enough.
        if self._handles:
            self._forest.live_table.rows([next(iter(self._handles.values()))])
        self._register()
        self._held_steps += 1
        asks, flush = allowed is not None and allowed.nodes > 0 and self._live > 0, self._held_steps > HELD_STEPS
        if flush:
            self._held_steps = 0
        # The tokens of an ended turn must reach the store before the turn is closed there, even if no flush is due.
        if len(self._ended):
            self._flush(self._chains.waiting[: self._waiting] if flush else self._ended)
            self._finish(self._ended.tolist(), keep=True)
        due = self._chains.waiting[: self._waiting] if asks or flush else _NO_ENDS
        turn_drafted = (len(slots) * self._longest if most is None else most) if allowed is not None else 0
        least, nodes = allowed if allowed is not None and asks else (1.0, 0)
        widest = _NO_ENDS if widths is None else widths
        self._advance(
            due, slots, least, Proposals(drafts, counts, widest, turn_drafted, nodes, self._nodes, self._space)
        )
        self._asked = self._live if allowed is not None else 0
        if asks:
            # The store learns from the tokens right after a draft, so the next step must flush them.
            self._held_steps = HELD_STEPS

    def cut(self, slots: NDArray[np.int32], length: int) -> None:
        """Drop proposed tokens after the first ``length`` of each row; the engine will not verify them."""
        known = slots[slots >= 0]
        drafted = self._chains.records["drafted"]
        drafted[known] = np.minimum(drafted[known], length)

    def commit(self) -> None:
        """Pass every token to the store and propose nothing."""
        self._held_steps = HELD_STEPS
        self.propose(_NO_ENDS, self._none, _NO_ENDS, allowed=None)

    def trees(
        self, slots: NDArray[np.int32], max_depths: NDArray[np.int32], *, max_nodes: int, min_probability: float
    ) -> DraftBatch:
        """Draft trees instead of chains, after ``commit``; the caller verifies them and reads the outcome.

        ``slots`` are of live turns. ``max_nodes`` and ``max_depths`` bound each tree.

        Raises:
            UnknownTurn: If the store was cleared while turns were live.
        """
        handles = [self._handles[slot] for slot in slots.tolist()]
        return self._forest.draft(
            handles, max_nodes=max_nodes, max_depths=max_depths.tolist(), min_probability=min_probability
        )

    def turn_drafts(self, slots: NDArray[np.int32], most: NDArray[np.int32]) -> list[list[int]]:
        """Return the next tokens of callers' drafts, at most ``most`` of each; empty if no turn has a draft."""
        records = self._chains.records
        if not records["turn_drafted"][slots].any():
            return []
        begins = (records["turn_draft"] + records["committed"])[slots]
        ends = (records["turn_draft"] + records["turn_drafted"])[slots]
        spans = zip(begins.tolist(), np.minimum(begins + most, ends).tolist(), strict=True)
        return [self._chains.turn_drafts[begin:end].tolist() for begin, end in spans]

    def max_draft_lengths(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return each turn's maximum draft length, shape (rows,): a step adds one token, so one less than are left."""
        records = self._chains.records
        left: NDArray[np.int32] = records["most"][slots] - records["committed"][slots] - 1
        return left.clip(0)

    def end(self, slots: Sequence[int], *, keep: bool) -> None:
        """Remove turns and free their slots. Running turns end; ``keep`` stores them as drafts for other turns."""
        self._register()
        live = [slot for slot in slots if slot in self._handles]
        if live:
            self._flush(np.array(live, np.int32))
            self._finish(live, keep=keep)
        for slot in slots:
            self._chains.records[slot]["live"] = self._chains.records[slot]["turn_drafted"] = 0
            del self._turns[slot]
        self._free += slots

    def lengths(self, slots: Sequence[int] | NDArray[np.int32]) -> list[int]:
        lengths: list[int] = self._chains.records["committed"][slots].tolist()
        return lengths

    def counters(self, slot: int) -> Counters:
        return Counters(*(int(self._chains.records[slot][name]) for name in Counters._fields))

    def _register(self) -> None:
        new, self._new = self._new, []
        if new:
            turns = [self._turns[slot] for slot in new]
            prompts = [np.array(turn.prompt, np.int32) for turn in turns]
            handles = self._forest.begin([turn.state for turn in turns], prompts)
            self._handles.update(zip(new, handles, strict=True))
            self._chains.records["row"][new] = self._forest.live_table.rows(handles)

    def _flush(self, due: NDArray[np.int32]) -> None:
        self._advance(due, _NO_ENDS, 1.0, Proposals(self._none, _NO_ENDS, _NO_ENDS, 0, 0, self._nodes, self._space))

    def _advance(self, due: NDArray[np.int32], slots: NDArray[np.int32], least: float, out: Proposals) -> None:
        held = self._chains.records["held"]
        # ``self._held`` is the sum if all waiting turns are due.
        all_ = len(due) == self._waiting
        tokens = self._held if all_ else int(held[due].sum())
        self._forest.advance(self._chains, due, tokens, slots, step=self._step, min_probability=least, out=out)
        waiting = self._chains.waiting[: self._waiting]
        left = waiting[held[waiting] > 0] if len(due) and not all_ else waiting[: 0 if all_ else self._waiting]
        self._waiting, self._held = len(left), self._held - tokens
        self._chains.waiting[: len(left)] = left

    def _finish(self, slots: Iterable[int], *, keep: bool) -> None:
        self._forest.end([self._handles.pop(slot) for slot in slots], keep=keep)

    def _more_slots(self) -> None:
        old = len(self._chains.records)
        size = max(_FIRST_SLOTS, 2 * old)
        self._free = list(range(size - 1, old - 1, -1))
        grown = {name: _longer(array, size) for name, array in self._chains._asdict().items() if name != "turn_drafts"}
        self._chains = self._chains._replace(**grown)

    def _keep_turn_draft(self, turn_draft: Sequence[int]) -> int:
        # All callers' drafts share one array. When the array is full, packing it drops the drafts of ended turns, and
        # drafts from which the policy has diverged.
        if not turn_draft:
            return 0
        if self._turn_draft_end + len(turn_draft) > len(self._chains.turn_drafts):
            self._pack_turn_drafts(len(turn_draft))
        at = self._turn_draft_end
        self._turn_draft_end += len(turn_draft)
        self._chains.turn_drafts[at : self._turn_draft_end] = turn_draft
        return at

    def _pack_turn_drafts(self, needed: int) -> None:
        records, old = self._chains.records, self._chains.turn_drafts
        used = np.flatnonzero(records["turn_drafted"] > 0)
        lengths = records["turn_drafted"][used]
        whole = int(lengths.sum())
        new = np.zeros(2 * (whole + needed), np.int32)
        end = 0
        for slot, length in zip(used.tolist(), lengths.tolist(), strict=True):
            begin = int(records[slot]["turn_draft"])
            new[end : end + length] = old[begin : begin + length]
            records[slot]["turn_draft"] = end
            end += length
        self._turn_draft_end = end
        self._chains = self._chains._replace(turn_drafts=new)

    def _make_room(self, rows: int) -> None:  # enlarges the working arrays for batches of ``rows`` rows
        if rows <= self._most_rows:
            return
        self._most_rows = size = 2 * rows
        count = size * self._longest
        tokens, paths = (lambda: np.zeros(count, np.int32)), (lambda: np.zeros(count, np.float32))
        self._nodes = DraftNodes(tokens=tokens(), parents=tokens(), depths=tokens(), paths=paths())
        indices, live, depths, nodes = np.zeros((4, size), np.int64)
        self._space = Space(rows=indices, live=live, room=depths, nodes=nodes, paths=paths())
        self._verdicts = Verdicts(ended=np.zeros(size, np.int32), estimates=paths(), accepted=np.zeros(count, np.bool_))
        self._none = np.zeros((0, self._longest), np.int32)  # drafts of a batch without rows


@cache
def warm_up() -> None:
    """Compile or load what a step needs besides the store's own kernels, so that no engine step waits for it."""
    forest = SpecForest(ForestConfig(threads=1))
    rows = ChainRows(forest, 1)
    slots = np.array(rows.begin([ChainTurn(state=DialogueState(exact=1), prompt=(), most=2)]), np.int32)
    one = np.zeros((1, 1), np.int32)
    rows.read(slots, one)
    rows.propose(slots, one.copy(), one[0].copy(), allowed=Allowance(0.0, 1))
    limits = DraftLimits(budget=1, floor=0.0, chain=True, ends=_NO_ENDS)
    nothing = np.full(3, -1, np.int64)
    out = Proposals(one, one[0], _NO_ENDS, 0, 0, rows._nodes, rows._space)
    help_out(nothing, limits, forest.live_table.turns.records, forest.sources, forest.weights, own_work(), out)


def _longer(array: NDArray[Any], size: int) -> NDArray[Any]:
    new = np.zeros((size, *array.shape[1:]), array.dtype)
    new[: len(array)] = array
    return new


def _wider(array: NDArray[np.int32], columns: int) -> NDArray[np.int32]:
    size = array.shape[1]
    while size < columns:
        size *= 2
    new = np.full((len(array), size), -1, np.int32)
    new[:, : array.shape[1]] = array
    return new
