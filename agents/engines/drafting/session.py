"""The drafting session: the interface between an engine's live turns and the draft store.

An engine reports which turns it samples, their tokens, and when they end. It chooses how many nodes (draft tokens of
a tree) a step may have. The session commits each sampled token to the store once, in order: before the store drafts
again, and before the turn ends.
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

HELD_STEPS = 16  #: steps without drafts whose tokens are committed at once, for little more time than one step's


@dataclass(slots=True, kw_only=True, eq=False)
class DraftTurn:
    """A turn that an engine samples, as the session sees it; engines add fields of their own."""

    turn_draft: Sequence[int] = ()  #: the caller's draft of the whole turn; empty once the policy sampled another token
    committed: int = 0  #: sampled tokens so far
    handle: int | None = None  #: the store's handle; ``None`` before the turn begins and after it ends

    def turn_drafted(self, most: int) -> list[int]:
        """Return the next tokens of the caller's draft, at most ``most``."""
        return list(self.turn_draft[self.committed : self.committed + max(0, most)])

    def advance(self, tokens: Sequence[int]) -> None:
        """Add sampled tokens; a draft that differs from them is dropped."""
        if self.turn_draft and list(self.turn_draft[self.committed : self.committed + len(tokens)]) != list(tokens):
            self.turn_draft = ()
        self.committed += len(tokens)


@dataclass(slots=True, kw_only=True)
class DraftCounts:
    """Counters since the engine started."""

    steps: int = 0  #: passes after which some turn continued
    plain_steps: int = 0  #: passes counted in ``steps`` that had no drafts; 0 if not reported
    rows: int = 0  #: turns that sampled in a pass, summed over passes
    tokens: int = 0  #: sampled tokens committed to the store
    verified: int = 0  #: tokens that the model processed in these passes, padding included; 0 if not reported
    drafted: int = 0  #: draft tokens verified
    accepted: int = 0  #: draft tokens that the policy itself sampled
    draft_seconds: float = 0.0  #: wall time of drafting and of updating the store
    idle_seconds: float = 0.0  #: part of ``seconds`` in which the device waited for drafts
    seconds: float = 0.0  #: wall time of steps, from one pass to the next while a turn continues

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class DraftingSession:
    """Begins, drafts, commits, ends and counts the turns of one engine, or of one of the engine's ranks."""

    forest: SpecForest | None  #: the draft store; ``None`` drafts nothing
    counts: DraftCounts = field(default_factory=DraftCounts)
    #: sampled tokens of live turns that are not committed to the store yet
    _held: dict[DraftTurn, list[int]] = field(default_factory=dict)
    _held_steps: int = 0  #: steps since the store got tokens; ``HELD_STEPS`` makes the next commit pass them on
    _marked: float = 0.0  #: time of the last ``mark_step``
    _waited: float = 0.0  #: seconds since then in which the device waited for drafts

    def begin(
        self, turns: Sequence[DraftTurn], states: Sequence[DialogueState], prompts: Sequence[Sequence[int]]
    ) -> None:
        """Register turns that have no handle yet with the store. Drafts may also copy from the turn's own prompt.

        ``prompts`` has the token ids of each turn's prompt.
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
        max_depths: Sequence[int],
        min_probability: float,
        chain: bool = False,
        total_nodes: int | None = None,
    ) -> DraftBatch:
        """Return drafts of the store, one tree per row, empty if nothing is allowed.

        ``max_nodes`` and ``max_depths`` bound each row, ``total_nodes`` bounds all rows together. Nodes with an
        estimated acceptance below ``min_probability`` are left out. ``chain`` allows one child per node.
        """
        if self.forest is None or not turns or total_nodes == 0:
            return DraftBatch.empty(len(turns))
        self._flush(list(self._held))  # drafts continue each turn's latest tokens, and copy from those of other turns
        batch = self.forest.draft(
            _handles(turns),
            max_nodes=max_nodes,
            max_depths=max_depths,
            min_probability=min_probability,
            chain=chain,
            total_nodes=total_nodes,
        )
        self._held_steps = HELD_STEPS  # the store learns from the tokens right after a draft: commit them at once
        return batch

    def commit(self, turns: Sequence[DraftTurn], tokens: Sequence[Sequence[int]]) -> None:
        """Append the tokens sampled since the last call to turns, one sequence per row.

        The store gets the tokens before it drafts, before the turn ends, or after ``HELD_STEPS`` steps without either.
        """
        for turn, sampled in zip(turns, tokens, strict=True):
            if turn.handle is not None and sampled:
                self._held.setdefault(turn, []).extend(sampled)
                self.counts.tokens += len(sampled)
            turn.advance(sampled)
        self._held_steps += 1
        if self._held_steps > HELD_STEPS:
            self._flush(list(self._held))
            self._held_steps = 0

    def end(self, turns: Sequence[DraftTurn], *, keep: bool) -> None:
        """End turns; ``keep`` stores them as drafts for other turns. Turns without a handle are ignored."""
        live = [turn for turn in turns if turn.handle is not None]
        if self.forest is not None and live:
            self._flush([turn for turn in live if turn in self._held])
            self.forest.end(_handles(live), keep=keep)
        for turn in live:
            turn.handle = None

    def _flush(self, turns: list[DraftTurn]) -> None:
        sampled = [self._held.pop(turn) for turn in turns]
        if self.forest is not None and sampled:
            self.forest.commit(_handles(turns), sampled)

    @contextmanager
    def timed(self, *, waits: bool = True) -> Iterator[float]:
        """Count the seconds of the block as drafting time, if there is a store, and yield the start time.

        Args:
            waits: Whether the device waits for the block; if not, only ``waited`` counts its waits.
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
        """Count the seconds of the block as a wait of the device for drafts that another thread computes."""
        began = time.perf_counter()
        yield
        self._waited += time.perf_counter() - began

    def mark_step(self, now: float, *, went_on: bool) -> None:
        """Count the time since the last call as an engine step, with its waits for drafts.

        Args:
            went_on: Whether a turn was live since the last call; otherwise the engine may have been idle.
        """
        if went_on:
            self.counts.seconds += now - self._marked
            self.counts.idle_seconds += self._waited
        self._marked, self._waited = now, 0.0


def _handles(turns: Sequence[DraftTurn]) -> list[int]:
    return [turn.handle for turn in turns if turn.handle is not None]
