"""Drafts for the requests of a pass, and the updates of the store after it.

``TreeDrafter`` stands between SGLang's requests and the store, and uses of
SGLang only the attributes in ``live_turn``. Invariant: the store is told each
token that the policy sampled once, in the order of the batch, and nothing else.
Of several ranks the first one alone has it (``ranked``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.drafting.trees import matched, with_guesses
from turntree.agents.engines.request_wire import is_judged
from turntree.agents.engines.served.drafter import ServedDrafter
from turntree.agents.engines.served.width import WidthChooser
from turntree.agents.engines.sglang.settings import SglangSettings
from turntree.agents.engines.sglang.worker.given_turns import GivenTurns, judged_tokens
from turntree.agents.engines.sglang.worker.live_turn import LiveTurn, Served
from turntree.agents.engines.sglang.worker.rows import TreeRows, best_nodes, tree_rows
from turntree.spec_tree import DraftBatch, SpecForest
from turntree.spec_tree.exchange.exchange import SharedTurns


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Draft counts of a step, per request."""

    drafted: list[int]
    """Verified nodes of each, padding left out."""
    accepted: list[int]
    """Of these, nodes that the policy sampled."""


@dataclass(slots=True, kw_only=True)
class _Step:
    """A pass between its drafts and its result."""

    turns: list[LiveTurn]
    draft: DraftBatch
    width: int
    own: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    """Nodes that the store offered, the caller's guesses left out, shape (nodes,)."""
    began: float = 0.0


class TreeDrafter(ServedDrafter):
    """Drafts for the requests of one engine."""

    def __init__(
        self,
        settings: SglangSettings,
        forest: SpecForest,
        widest: int,
        *,
        clock: Callable[[], float] = time.perf_counter,
        shared: SharedTurns | None = None,
        device: str = "cpu",
    ) -> None:
        """Start with a store."""
        super().__init__(forest, shared=shared)
        self.widths = settings.widths_within(widest)
        self._settings = settings
        self._clock = clock
        self._device = device
        self.chooser = WidthChooser(self.widths)
        self._live: dict[str, LiveTurn] = {}
        self._given = GivenTurns()
        self._step: _Step | None = None

    def prompts(self, requests: Sequence[Served]) -> None:
        """Hear of the requests of a pass over prompts: a turn with given tokens may end in it."""
        with self._session.timed():
            self._learn()
            self._given.record_given([request for request in requests if request.rid not in self._live])

    def propose(self, requests: Sequence[Served]) -> TreeRows:
        """Draft trees for all requests of a pass.

        Args:
            requests: Each has sampled one token at least.
        """
        with self._session.timed() as began:
            self._session.mark_step(began, went_on=any(request.rid in self._live for request in requests))
            self._learn()
            self._sweep(requests)
            turns = self._turns(requests)
            self._commit(turns)
            offered = self._session.draft(
                turns,
                max_nodes=self._widest(len(turns)) - 1,
                room=[min(self._settings.max_depth, turn.room) for turn in turns],
                min_probability=self._settings.min_probability,
            )
            step = self._chosen(turns, offered)
            self._step = step
            last = np.array([turn.request.output_ids[-1] for turn in turns], np.int64)
            rows = tree_rows(step.draft, last, step.width)
        step.began = self._clock()
        return rows

    def drafted(self) -> list[int]:
        """Nodes that the pass verifies of each request, padding left out."""
        return [] if self._step is None else np.diff(self._step.draft.offsets).tolist()

    def settle(self) -> StepCounts:
        """Finish a pass: tell the store its requests' new tokens, and count the accepted ones."""
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("settle() follows propose(), once")
        seconds = self._clock() - step.began
        with self._session.timed():
            accepted = matched(step.draft, [turn.news for turn in step.turns])
            self._commit(step.turns)
            self._end([turn for turn in step.turns if turn.request.finished_reason is not None])
            rows, width = len(step.turns), step.width
            own = step.own
            self.chooser.observe(
                rows=rows,
                width=width,
                estimates=step.draft.probabilities[own].astype(np.float64),
                accepted=accepted[own],
                seconds=seconds,
            )
            by_row = np.add.reduceat(np.append(accepted, False).astype(np.int64), step.draft.offsets[:-1])
            counts = np.diff(step.draft.offsets)
            by_row[counts == 0] = 0
            self._count(step, int(by_row.sum()))
        return StepCounts(drafted=counts.tolist(), accepted=by_row.tolist())

    def idle(self) -> None:
        """Without live requests: end turns that were aborted unseen, and exchange turns with the other engines."""
        self._learn()
        self._end(list(self._live.values()))
        self._swap()

    def _chosen(self, turns: list[LiveTurn], offered: DraftBatch) -> _Step:
        """The nodes to verify: the store's offers after the callers' guesses."""
        most = self._widest(len(turns)) - 1
        guesses = [turn.guessed(min(most, turn.room)) for turn in turns]
        width = self.chooser.choose(offered) if self._settings.adaptive else self._fitting(offered)
        draft = best_nodes(offered, width - 1)
        longest = max((len(guess) for guess in guesses), default=0)
        if longest:
            width = max(width, self.widths[int(np.searchsorted(self.widths, longest + 1))])
            draft = best_nodes(with_guesses(draft, guesses), width - 1)
        own = np.ones(len(draft.tokens), bool)
        for begin, guess in zip(draft.offsets, guesses, strict=False):
            own[begin : begin + len(guess)] = False
        return _Step(turns=turns, draft=draft, width=width, own=own)

    def _widest(self, rows: int) -> int:
        return self._settings.most_width(rows, self.widths, self._device)

    def _fitting(self, draft: DraftBatch) -> int:
        most = int(np.diff(draft.offsets).max(initial=0))
        return self.widths[0] if most == 0 else self.widths[int(np.searchsorted(self.widths, most + 1))]

    def _turns(self, requests: Sequence[Served]) -> list[LiveTurn]:
        new = [LiveTurn.of(request, self._vocabulary) for request in requests if request.rid not in self._live]
        self._session.begin(new, [turn.state for turn in new], [turn.prompt for turn in new])
        self._live |= {turn.request.rid: turn for turn in new}
        for request in requests:
            self._given.decodes(request)
        return [self._live[request.rid] for request in requests]

    def _learn(self) -> None:
        """Tell the store of turns that ended in a pass over prompts, each at once."""
        for request in self._given.ended():
            turn = LiveTurn.of(request)
            sampled = judged_tokens(request) if is_judged(request.sampling_params.custom_params) else turn.sampled
            if turn.keeps and sampled:
                self.counts.tokens += len(sampled)
                self._insert(turn.state, sampled)

    def _commit(self, turns: Sequence[LiveTurn]) -> None:
        behind = [turn for turn in turns if len(turn.sampled) > turn.committed]
        self._session.commit(behind, [turn.news for turn in behind])

    def _sweep(self, requests: Sequence[Served]) -> None:
        """End turns that finished while they were not in the batch; a retracted one comes back."""
        if len(self._live) > len(requests):
            self._end([turn for turn in self._live.values() if turn.request.finished_reason is not None])

    def _end(self, turns: Sequence[LiveTurn]) -> None:
        for keep in (True, False):
            self._session.end([turn for turn in turns if turn.keeps is keep], keep=keep)
        for turn in turns:
            if turn.keeps:
                self._note(turn.state, turn.sampled)
            del self._live[turn.request.rid]

    def _count(self, step: _Step, accepted: int) -> None:
        counts, rows = self.counts, len(step.turns)
        counts.steps += 1
        counts.plain_steps += step.width == 1
        counts.rows += rows
        counts.verified += rows * step.width
        counts.drafted += len(step.draft.tokens)
        counts.accepted += accepted
