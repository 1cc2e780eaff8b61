"""The live turns of an engine whose drafts are chains, kept in arrays.

In a step in which no turn begins or ends nothing is done row by row outside compiled code: ``read`` takes the step's
tokens, ``propose`` passes them on to the store and writes the next drafts, without the interpreter's lock.
A turn ends by its own rule, at its length or a stop token, whatever the engine samples behind it: an engine
that runs ahead of the sampled tokens may keep it in its batch for another step.

One thread at a time may use it. Drafts change how many passes a turn takes, never its tokens.
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
    """A turn that begins."""

    state: DialogueState
    prompt: Sequence[int]
    """Token ids of its prompt."""
    most: int
    """Most tokens of the turn."""
    least: int = 0
    """Least length in tokens, before which no stop token ends it."""
    stops: frozenset[int] = frozenset()
    """Tokens that end it."""
    turn_draft: Sequence[int] = ()
    """The caller's draft of the whole turn, from its first token."""


class StepResult(NamedTuple):
    """What came of a step; its arrays hold until the next one is read."""

    rows: int
    """Requests that sampled."""
    live: int
    """Their turns that go on."""
    tokens: int
    """Tokens of the turns."""
    turn_drafted: int
    """Next tokens of callers' drafts."""
    ended: NDArray[np.int32]
    """Slots of the turns that ended, shape (turns,)."""
    estimates: NDArray[np.float32]
    """The store's estimate of each of its draft tokens that was verified, shape (tokens,)."""
    accepted: NDArray[np.bool_]
    """Whether the policy sampled it, shape (tokens,)."""
    whole: bool
    """Whether all turns that drafts were asked for sampled, and none of them had a draft proposed."""


class Counters(NamedTuple):
    """Of one turn."""

    verify_steps: int
    """Steps in which it sampled."""
    offered: int
    """Draft tokens that were verified."""
    accepted: int
    """Of these, tokens that the policy sampled itself."""


class ChainRows:
    """Begins, reads, drafts, ends and counts turns, each known by its slot."""

    def __init__(self, forest: SpecForest, longest: int) -> None:
        """Start without turns."""
        self._forest = forest
        self._longest = longest
        self._step = 0
        self._asked = 0
        """Turns that drafts were asked for after the last step."""
        self._live = 0
        self._waiting = self._held = 0
        """Turns that hold tokens, and how many."""
        self._held_steps = 0
        self._ended: NDArray[np.int32] = _NO_ENDS
        self._new: list[int] = []
        """Slots of turns that the store does not know yet."""
        self._turns: dict[int, ChainTurn] = {}
        self._handles: dict[int, int] = {}
        """The store's handles of the turns that are not over, by slot."""
        self._free: list[int] = []
        self._guesses = 0
        """End of the drafts in use."""
        self._chains = Chains(
            records=np.zeros(0, CHAIN),
            held=np.zeros((0, _FIRST_HELD), np.int32),
            stops=np.zeros((0, 1), np.int32),
            turn_drafts=np.zeros(1, np.int32),
            estimates=np.zeros((0, longest), np.float32),
            waiting=np.zeros(0, np.int32),
        )
        self._most_rows = -1
        self._make_room(0)

    def begin(self, turns: Sequence[ChainTurn]) -> list[int]:
        """Take turns in; returns the slot of each. The store is asked for its part at the next ``propose``."""
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
            record["live"], record["prompt"], record["least"], record["most"] = (
                1,
                len(turn.prompt),
                turn.least,
                turn.most,
            )
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
        """Take the tokens of a step. Tokens behind the end of a turn are ignored.

        Args:
            slots: Slot of each row of the batch, -1 for one without, shape (rows,).
            tokens: New tokens, -1 after the last, shape (rows or more, any); with ``ends`` prompt and tokens of each.
            ends: Tokens of each row with its prompt, 0 where it sampled nothing, shape (rows,).
        """
        self._step += 1
        self._make_room(len(slots))
        given = slots, tokens, _NO_ENDS if ends is None else ends, self._step, self._waiting
        found = Read(*read(*given, self._chains, self._verdicts))
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
        """``read`` of several steps without drafts at once, in each of which every turn sampled one token.

        Args:
            tokens: Shape (rows, steps).
        """
        known, records = slots[slots >= 0], self._chains.records
        before = records["committed"][known]
        found = self.read(slots, tokens)
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
        """Pass the tokens of the step that was read on to the store, end the turns that ended in it, and draft.

        While nothing is drafted the store gets the tokens of some steps at once.

        Args:
            drafts: Filled, -1 after the last token, shape (rows, at least the greatest length of a draft).
            counts: Their lengths, filled, shape (rows,).
            allowed: Limits of the store's drafts; ``None`` proposes nothing, no draft either.
            most: Most tokens of callers' drafts of all rows together; ``None`` does not bound them.
            widths: Greatest length of each draft, shape (rows,).

        Raises:
            UnknownTurn: If the store was cleared while turns were live.
        """
        if self._handles:
            self._forest.live_table.rows([next(iter(self._handles.values()))])
        self._register()
        self._held_steps += 1
        asks, whole = allowed is not None and allowed.nodes > 0 and self._live > 0, self._held_steps > HELD_STEPS
        if whole:
            self._held_steps = 0
        if len(self._ended):
            self._tell(self._chains.waiting[: self._waiting] if whole else self._ended)
            self._finish(self._ended.tolist(), keep=True)
        due = self._chains.waiting[: self._waiting] if asks or whole else _NO_ENDS
        turn_drafted = (len(slots) * self._longest if most is None else most) if allowed is not None else 0
        least, nodes = allowed if allowed is not None and asks else (1.0, 0)
        widest = _NO_ENDS if widths is None else widths
        self._advance(
            due, slots, least, Proposals(drafts, counts, widest, turn_drafted, nodes, self._nodes, self._space)
        )
        self._asked = self._live if allowed is not None else 0
        if asks:
            self._held_steps = HELD_STEPS  # what becomes of the drafts is learnt from the next tokens alone

    def cut(self, slots: NDArray[np.int32], length: int) -> None:
        """Leave out what was proposed behind ``length`` tokens: it will not be verified."""
        known = slots[slots >= 0]
        drafted = self._chains.records["drafted"]
        drafted[known] = np.minimum(drafted[known], length)

    def step(
        self,
        slots: NDArray[np.int32],
        sampled: NDArray[np.int32],
        *,
        allowed: Allowance | None,
        drafts: NDArray[np.int32],
        counts: NDArray[np.int32],
        widths: NDArray[np.int32] | None = None,
    ) -> StepResult:
        """``read`` and ``propose``, for a caller that knows before what it allows; arguments as of those."""
        found = self.read(slots, sampled)
        self.propose(slots, drafts, counts, allowed=allowed, widths=widths)
        return found

    def commit(self) -> None:
        """``propose`` nothing, and let the store know every token."""
        self._held_steps = HELD_STEPS
        self.propose(_NO_ENDS, self._none, _NO_ENDS, allowed=None)

    def trees(
        self, slots: NDArray[np.int32], room: NDArray[np.int32], *, max_nodes: int, min_probability: float
    ) -> DraftBatch:
        """Trees of the store in the place of chains, after ``commit``; the caller verifies them, and reads what comes.

        Args:
            slots: Of turns that go on, shape (rows,).
            room: Greatest depth of each tree, shape (rows,).
            max_nodes: Most nodes of each.
            min_probability: Estimated acceptance below which a node is left out.

        Raises:
            UnknownTurn: If the store was cleared while turns were live.
        """
        handles = [self._handles[slot] for slot in slots.tolist()]
        return self._forest.draft(handles, max_nodes=max_nodes, room=room.tolist(), min_probability=min_probability)

    def turn_drafts(self, slots: NDArray[np.int32], most: NDArray[np.int32]) -> list[list[int]]:
        """The next tokens of callers' drafts, at most ``most``, shape (rows,), of each turn; empty if there are none
        at all."""
        records = self._chains.records
        if not records["turn_drafted"][slots].any():
            return []
        begins, ends = (
            (records["turn_draft"] + records["committed"])[slots],
            (records["turn_draft"] + records["turn_drafted"])[slots],
        )
        spans = zip(begins.tolist(), np.minimum(begins + most, ends).tolist(), strict=True)
        return [self._chains.turn_drafts[begin:end].tolist() for begin, end in spans]

    def room(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """Most tokens of each turn's draft, after which the policy adds one, shape (rows,)."""
        records = self._chains.records
        left: NDArray[np.int32] = records["most"][slots] - records["committed"][slots] - 1
        return left.clip(0)

    def end(self, slots: Sequence[int], *, keep: bool) -> None:
        """Let turns go, whose slots may be given again. Those that are not over end here.

        Args:
            keep: Whether the tokens of those that are not over may draft others.
        """
        self._register()
        live = [slot for slot in slots if slot in self._handles]
        if live:
            self._tell(np.array(live, np.int32))
            self._finish(live, keep=keep)
        for slot in slots:
            self._chains.records[slot]["live"] = self._chains.records[slot]["turn_drafted"] = 0
            del self._turns[slot]
        self._free += slots

    def lengths(self, slots: Sequence[int] | NDArray[np.int32]) -> list[int]:
        """Tokens so far of turns that were not let go."""
        lengths: list[int] = self._chains.records["committed"][slots].tolist()
        return lengths

    def counters(self, slot: int) -> Counters:
        """Of a turn that was not let go."""
        return Counters(*(int(self._chains.records[slot][name]) for name in Counters._fields))

    def _register(self) -> None:
        """Let the new turns begin in the store."""
        new, self._new = self._new, []
        if new:
            turns = [self._turns[slot] for slot in new]
            prompts = [np.array(turn.prompt, np.int32) for turn in turns]
            handles = self._forest.begin([turn.state for turn in turns], prompts)
            self._handles.update(zip(new, handles, strict=True))
            self._chains.records["row"][new] = self._forest.live_table.rows(handles)

    def _tell(self, due: NDArray[np.int32]) -> None:
        """Pass the tokens of some slots on to the store, and draft nothing."""
        self._advance(due, _NO_ENDS, 1.0, Proposals(self._none, _NO_ENDS, _NO_ENDS, 0, 0, self._nodes, self._space))

    def _advance(self, due: NDArray[np.int32], slots: NDArray[np.int32], least: float, out: Proposals) -> None:
        """Commit the tokens of the turns ``due`` and draft, under a least probability."""
        held = self._chains.records["held"]
        all_ = len(due) == self._waiting
        tokens = self._held if all_ else int(held[due].sum())
        self._forest.advance(self._chains, due, tokens, slots, step=self._step, min_probability=least, out=out)
        waiting = self._chains.waiting[: self._waiting]
        left = waiting[held[waiting] > 0] if len(due) and not all_ else waiting[: 0 if all_ else self._waiting]
        self._waiting, self._held = len(left), self._held - tokens
        self._chains.waiting[: len(left)] = left

    def _finish(self, slots: Iterable[int], *, keep: bool) -> None:
        """End turns in the store, which has all their tokens."""
        self._forest.end([self._handles.pop(slot) for slot in slots], keep=keep)

    def _more_slots(self) -> None:
        old = len(self._chains.records)
        size = max(_FIRST_SLOTS, 2 * old)
        self._free = list(range(size - 1, old - 1, -1))
        grown = {name: _longer(array, size) for name, array in self._chains._asdict().items() if name != "turn_drafts"}
        self._chains = self._chains._replace(**grown)

    def _keep_turn_draft(self, turn_draft: Sequence[int]) -> int:
        """Store a draft; returns where. Those of turns that are over or went on otherwise make room."""
        if not turn_draft:
            return 0
        if self._guesses + len(turn_draft) > len(self._chains.turn_drafts):
            self._pack_turn_drafts(len(turn_draft))
        at = self._guesses
        self._guesses += len(turn_draft)
        self._chains.turn_drafts[at : self._guesses] = turn_draft
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
        self._guesses = end
        self._chains = self._chains._replace(turn_drafts=new)

    def _make_room(self, rows: int) -> None:
        """Have room to work in for a batch of so many rows."""
        if rows <= self._most_rows:
            return
        self._most_rows = size = 2 * rows
        count = size * self._longest
        tokens, paths = (lambda: np.zeros(count, np.int32)), (lambda: np.zeros(count, np.float32))
        self._nodes = DraftNodes(tokens=tokens(), parents=tokens(), depths=tokens(), paths=paths())
        places, live, room, nodes = np.zeros((4, size), np.int64)
        self._space = Space(rows=places, live=live, room=room, nodes=nodes, paths=paths())
        self._verdicts = Verdicts(ended=np.zeros(size, np.int32), estimates=paths(), accepted=np.zeros(count, np.bool_))
        self._none = np.zeros((0, self._longest), np.int32)


@cache
def warm_up() -> None:
    """Compile or load what a step needs beside the store's own kernels, so that no step of an engine waits for it."""
    forest = SpecForest(ForestConfig(threads=1))
    rows = ChainRows(forest, 1)
    slots = np.array(rows.begin([ChainTurn(state=DialogueState(exact=1), prompt=(), most=2)]), np.int32)
    one = np.zeros((1, 1), np.int32)
    rows.step(slots, one, allowed=Allowance(0.0, 1), drafts=one.copy(), counts=one[0].copy())
    limits, turns, sources = (
        DraftLimits(budget=1, floor=0.0, chain=True, ends=_NO_ENDS),
        forest.live_table,
        forest.sources,
    )
    nothing = np.full(3, -1, np.int64)
    out = Proposals(one, one[0], _NO_ENDS, 0, 0, rows._nodes, rows._space)
    help_out(nothing, limits, turns.turns.records, sources, forest.weights, own_work(), out)


def _longer(array: NDArray[Any], size: int) -> NDArray[Any]:
    new = np.zeros((size, *array.shape[1:]), array.dtype)
    new[: len(array)] = array
    return new


def _wider(array: NDArray[np.int32], columns: int) -> NDArray[np.int32]:
    """``array`` with twice as many columns or more, -1 in the new ones."""
    size = array.shape[1]
    while size < columns:
        size *= 2
    new = np.full((len(array), size), -1, np.int32)
    new[:, : array.shape[1]] = array
    return new
