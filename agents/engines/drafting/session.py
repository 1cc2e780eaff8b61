"""The drafting session: the interface between an engine's live turns and the store of drafts.

An engine reports which turns it samples, their tokens, and when they end. It translates its requests into
``DraftTurn`` and drafts into the form that its verification takes; how wide or deep a step drafts is its own choice.

Invariant: each sampled token is committed to the store once, in order, and no other, before drafts and before the turn
ends. Drafts change how many passes a turn takes, never its tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from turntree.spec_tree.draft import DraftBatch

if TYPE_CHECKING:
    from turntree.spec_tree import DialogueState, SpecForest

HELD_STEPS = 16
"""Steps without drafts that are committed to the store in one batch; a single step costs nearly as much."""


@dataclass(slots=True, kw_only=True, eq=False)
class DraftTurn:
    """A turn that an engine samples, in the session's view; engines add fields of their own."""

    turn_draft: Sequence[int] = ()
    """The caller's draft of the whole turn, from its first token; empty once the policy sampled another token."""
    committed: int = 0
    """Sampled tokens appended to turns."""
    handle: int | None = None
    """The store's handle of the turn; ``None`` before it began and once it is over."""

    def turn_drafted(self, most: int) -> list[int]:
        """The next tokens of the caller's draft, at most ``most``."""
        return list(self.turn_draft[self.committed : self.committed + max(0, most)])

    def advance(self, tokens: Sequence[int]) -> None:
        """Add sampled tokens; a draft that differs from them is dropped."""
        if self.turn_draft and list(self.turn_draft[self.committed : self.committed + len(tokens)]) != list(tokens):
            self.turn_draft = ()
        self.committed += len(tokens)


@dataclass(slots=True, kw_only=True)
class DraftCounts:
    """Counters since the engine started."""

    steps: int = 0
    """Passes after which turns went on."""
    plain_steps: int = 0
    """Of these, passes without drafts; 0 where the engine does not distinguish them."""
    rows: int = 0
    """Turns that sampled in a pass, summed over passes."""
    tokens: int = 0
    """Their tokens that are committed to the store."""
    verified: int = 0
    """Tokens that the engine ran the model over for them, padding included; 0 where it does not report it."""
    drafted: int = 0
    """Draft tokens verified."""
    accepted: int = 0
    """Of these, tokens that the policy sampled itself."""
    draft_seconds: float = 0.0
    """Wall time spent on drafts and on updating the store, seconds."""
    idle_seconds: float = 0.0
    """The part of ``seconds`` in which the device waited for drafts, seconds."""
    seconds: float = 0.0
    """Wall time of the engine's steps, seconds: from one pass to the next while a turn goes on."""

    def to_dict(self) -> dict[str, float]:
        """As JSON values."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class DraftingSession:
    """Begins, drafts, drafts, commits, ends and counts the turns of one engine, or of one rank of it."""

    forest: SpecForest | None
    """The store; without one nothing is drafted."""
    counts: DraftCounts = field(default_factory=DraftCounts)
    """Counters so far."""
    _held: dict[DraftTurn, list[int]] = field(default_factory=dict)
    """Sampled tokens of live turns not committed to the store yet."""
    _held_steps: int = 0
    _marked: float = 0.0
    _waited: float = 0.0

    def begin(
        self, turns: Sequence[DraftTurn], states: Sequence[DialogueState], prompts: Sequence[Sequence[int]]
    ) -> None:
        """Register turns with the store, with their prompts: a turn is drafted from its own dialogue too.

        Args:
            turns: Turns without a handle.
            prompts: Token ids of each turn's prompt.
        """
        if self.forest is None or not turns:
            return
        handles = self.forest.begin(states, [np.array(prompt, np.int32) for prompt in prompts])
        for turn, handle in zip(turns, handles, strict=True):
            turn.handle = handle

    def draft(
        self,
        turns: Sequence[DraftTurn],
        *,
        max_nodes: int,
        room: Sequence[int],
        min_probability: float,
        chain: bool = False,
        total_nodes: int | None = None,
    ) -> DraftBatch:
        """Drafts of the store.

        Args:
            turns: Begun turns, shape (rows,).
            max_nodes: Most nodes of a row.
            room: Greatest depth of each row, shape (rows,).
            min_probability: Estimated acceptance below which a node is left out.
            chain: One child per node.
            total_nodes: Most nodes of all rows together; ``None`` does not bound them.

        Returns:
            One tree a row; empty ones without a store, or where nothing is allowed.
        """
        if self.forest is None or not turns or total_nodes == 0:
            return DraftBatch.empty(len(turns))
        self._tell(list(self._held))  # drafts go on from the latest tokens, of siblings too
        batch = self.forest.draft(
            _handles(turns),
            max_nodes=max_nodes,
            room=room,
            min_probability=min_probability,
            chain=chain,
            total_nodes=total_nodes,
        )
        self._held_steps = HELD_STEPS  # what becomes of the drafts is learnt from the next tokens alone
        return batch

    def commit(self, turns: Sequence[DraftTurn], tokens: Sequence[Sequence[int]]) -> None:
        """Append sampled tokens to turns. The store takes them before it drafts, before their turn ends, and after
        some steps without either; of turns without a handle it does not.

        Args:
            turns: Turns, shape (rows,).
            tokens: Sampled since the last call, one sequence a row.
        """
        for turn, sampled in zip(turns, tokens, strict=True):
            if turn.handle is not None and sampled:
                self._held.setdefault(turn, []).extend(sampled)
                self.counts.tokens += len(sampled)
            turn.advance(sampled)
        self._held_steps += 1
        if self._held_steps > HELD_STEPS:
            self._tell(list(self._held))
            self._held_steps = 0

    def end(self, turns: Sequence[DraftTurn], *, keep: bool) -> None:
        """Finish turns; those without a handle are ignored.

        Args:
            turns: Turns, shape (rows,).
            keep: Whether their tokens may draft others.
        """
        live = [turn for turn in turns if turn.handle is not None]
        if self.forest is not None and live:
            self._tell([turn for turn in live if turn in self._held])
            self.forest.end(_handles(live), keep=keep)
        for turn in live:
            turn.handle = None

    def _tell(self, turns: list[DraftTurn]) -> None:
        """Tell the store of the tokens held of ``turns``."""
        sampled = [self._held.pop(turn) for turn in turns]
        if self.forest is not None and sampled:
            self.forest.commit(_handles(turns), sampled)

    @contextmanager
    def timed(self, *, waits: bool = True) -> Iterator[float]:
        """Count the seconds of the block as spent on drafts; without a store none are. It is given the time at which
        it began.

        Args:
            waits: Whether the device waits for the block; else for what ``waited`` counts of it alone.
        """
        began = time.perf_counter()
        yield began
        if self.forest is not None:
            seconds = time.perf_counter() - began
            self.counts.draft_seconds += seconds
            if waits:
                self._waited += seconds

    @contextmanager
    def waited(self) -> Iterator[None]:
        """Count the seconds of the block as a wait of the device for drafts that another thread makes."""
        began = time.perf_counter()
        yield
        self._waited += time.perf_counter() - began

    def mark_step(self, now: float, *, went_on: bool) -> None:
        """Count the time since the last call as a step of the engine, with the waits for drafts in it.

        Args:
            went_on: Whether a turn was live all that time; else the engine may have had nothing to do.
        """
        if went_on:
            self.counts.seconds += now - self._marked
            self.counts.idle_seconds += self._waited
        self._marked, self._waited = now, 0.0


def _handles(turns: Sequence[DraftTurn]) -> list[int]:
    return [turn.handle for turn in turns if turn.handle is not None]
