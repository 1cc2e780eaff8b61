"""What the requests of a pass draft, and what the store learns from it.

``TreeDrafter`` stands between SGLang's requests and the store, and knows of
SGLang only what ``live_turn`` reads of a request. Invariant: the
store hears each token that the policy sampled once, in the order of the batch,
and nothing else; what is drafted follows from that alone up to rounding, so
ranks that serve the same requests need to agree on the store's drafts and on
nothing more (the seconds of a step are nominal there).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.local.drafting import with_guesses
from turntree.agents.engines.sglang.settings import SglangSettings
from turntree.agents.engines.sglang.worker.live_turn import LiveTurn, Served, state_of_request
from turntree.agents.engines.sglang.worker.rows import TreeRows, best_nodes, tree_rows
from turntree.agents.engines.sglang.worker.width import WidthChooser
from turntree.spec_tree import DraftBatch, SpecForest
from turntree.spec_tree.exchange.exchange import SharedTurns


@dataclass(slots=True, kw_only=True)
class DraftCounts:
    """What was done so far."""

    steps: int = 0
    """Passes."""
    plain_steps: int = 0
    """Of these, passes without drafts."""
    rows: int = 0
    """Requests of all passes."""
    verified: int = 0
    """Tokens of all passes, padding included."""
    drafted: int = 0
    """Draft nodes verified."""
    accepted: int = 0
    """Of these, nodes that the policy sampled."""
    draft_seconds: float = 0.0
    """Spent on drafts and on telling the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """What a step gave its requests."""

    drafted: list[int]
    """Nodes that were verified of each, padding left out."""
    accepted: list[int]
    """Of these, nodes that the policy sampled."""


@dataclass(slots=True, kw_only=True)
class _Step:
    """A pass between its drafts and its outcome."""

    turns: list[LiveTurn]
    draft: DraftBatch
    width: int
    own: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))
    """Nodes that the store offered, the caller's guesses left out, shape (nodes,)."""
    began: float = 0.0


class TreeDrafter:
    """Drafts for the requests of one engine, or of one rank of it."""

    def __init__(
        self,
        settings: SglangSettings,
        forest: SpecForest,
        widest: int,
        *,
        clock: Callable[[], float] | None = time.perf_counter,
        shared: SharedTurns | None = None,
        agree: Callable[[DraftBatch], DraftBatch] | None = None,
    ) -> None:
        """Begin with a store.

        Args:
            settings: How to draft.
            forest: The store.
            widest: Tokens of one request in one pass at most.
            clock: Measures steps; ``None`` where several ranks must decide alike.
            shared: The way to other engines' stores.
            agree: What several ranks draft in the stead of what each offers.
        """
        self.counts = DraftCounts()
        self.forest = forest
        self.widths = settings.widths_within(widest)
        self._settings = settings
        self._clock = clock
        self._shared = shared
        self._agree = agree
        self.chooser = WidthChooser(self.widths)
        self._live: dict[str, LiveTurn] = {}
        self._step: _Step | None = None

    def propose(self, requests: Sequence[Served]) -> TreeRows:
        """Trees for all requests of a pass.

        Args:
            requests: Each has sampled one token at least.
        """
        began = time.perf_counter()
        self._sweep(requests)
        turns = self._turns(requests)
        self._commit(turns)
        offered = self.forest.draft(
            [turn.handle for turn in turns],
            max_nodes=self.widths[-1] - 1,
            room=[min(self._settings.max_depth, turn.room) for turn in turns],
            min_probability=self._settings.min_probability,
        )
        if self._agree is not None:
            offered = self._agree(offered)
        step = self._chosen(turns, offered)
        self._step = step
        last = np.array([turn.request.output_ids[-1] for turn in turns], np.int64)
        rows = tree_rows(step.draft, last, step.width)
        self.counts.draft_seconds += time.perf_counter() - began
        step.began = began if self._clock is None else self._clock()
        return rows

    def drafted(self) -> list[int]:
        """Nodes that the pass verifies of each request, padding left out."""
        return [] if self._step is None else np.diff(self._step.draft.offsets).tolist()

    def settle_if_any(self, seconds: float) -> None:
        """As ``settle``, where a pass was proposed and not settled; ``seconds`` is what it took, NaN if unknown."""
        if self._step is not None:
            self.settle(seconds)

    def settle(self, seconds: float | None = None) -> StepCounts:
        """The pass is over and its requests have their new tokens: tell the store, and learn what it gave.

        Args:
            seconds: What the pass took, NaN if that is not known; ``None`` measures until now.
        """
        step, self._step = self._step, None
        if step is None:
            raise RuntimeError("settle() follows propose(), once")
        elapsed = 0.0 if self._clock is None else self._clock() - step.began if seconds is None else seconds
        began = time.perf_counter()
        new = [turn.unheard for turn in step.turns]
        accepted = _matched(step.draft, new)
        self._commit(step.turns)
        self._end([turn for turn in step.turns if turn.request.finished_reason is not None])
        rows, width = len(step.turns), step.width
        seconds = elapsed if self._clock is not None else 1.0 + self._settings.token_cost * rows * width
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
        self.counts.draft_seconds += time.perf_counter() - began
        return StepCounts(drafted=counts.tolist(), accepted=by_row.tolist())

    def idle(self) -> None:
        """No request is left: end what was given up unseen, and meet the other engines."""
        self._end(list(self._live.values()))
        if self._shared is not None:
            self._shared.swap()

    def _chosen(self, turns: list[LiveTurn], offered: DraftBatch) -> _Step:
        """What is verified of what the store offers, and the callers' guesses before it."""
        guesses = [turn.guessed(self.widths[-1] - 1) for turn in turns]
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

    def _fitting(self, draft: DraftBatch) -> int:
        most = int(np.diff(draft.offsets).max(initial=0))
        return self.widths[0] if most == 0 else self.widths[int(np.searchsorted(self.widths, most + 1))]

    def _turns(self, requests: Sequence[Served]) -> list[LiveTurn]:
        new = [request for request in requests if request.rid not in self._live]
        if new:
            states = [state_of_request(request) for request in new]
            handles = self.forest.begin(states, [np.array(r.origin_input_ids, np.int32) for r in new])
            for request, state, handle in zip(new, states, handles, strict=True):
                self._live[request.rid] = LiveTurn.begin(request, state, handle)
        return [self._live[request.rid] for request in requests]

    def _commit(self, turns: Sequence[LiveTurn]) -> None:
        """Tell the store what it has not heard yet."""
        behind = [turn for turn in turns if len(turn.request.output_ids) > turn.committed]
        if not behind:
            return
        new = [turn.unheard for turn in behind]
        self.forest.commit([turn.handle for turn in behind], new)
        for turn, tokens in zip(behind, new, strict=True):
            turn.heard(tokens)

    def _sweep(self, requests: Sequence[Served]) -> None:
        """End turns that were finished while they were not in the batch; a retracted one comes back."""
        if len(self._live) > len(requests):
            self._end([turn for turn in self._live.values() if turn.request.finished_reason is not None])

    def _end(self, turns: Sequence[LiveTurn]) -> None:
        for keep in (True, False):
            ended = [turn for turn in turns if turn.keeps is keep]
            if ended:
                self.forest.end([turn.handle for turn in ended], keep=keep)
            for turn in ended:
                del self._live[turn.request.rid]
                if keep and self._shared is not None:
                    self._shared.note(turn.state, turn.request.output_ids)

    def _count(self, step: _Step, accepted: int) -> None:
        counts, rows = self.counts, len(step.turns)
        counts.steps += 1
        counts.plain_steps += step.width == 1
        counts.rows += rows
        counts.verified += rows * step.width
        counts.drafted += len(step.draft.tokens)
        counts.accepted += accepted


def _matched(draft: DraftBatch, new: Sequence[Sequence[int]]) -> NDArray[np.bool_]:
    """Which nodes the policy sampled, shape (nodes,)."""
    matched = np.zeros(len(draft.tokens), bool)
    for row, tokens in enumerate(new):
        begin, stop = int(draft.offsets[row]), int(draft.offsets[row + 1])
        at = -1
        for node in range(begin, stop):
            depth = int(draft.depths[node]) - 1
            if depth < len(tokens) and int(draft.parents[node]) == at and int(draft.tokens[node]) == tokens[depth]:
                matched[node] = True
                at = node - begin
    return matched
