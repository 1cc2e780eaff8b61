"""What each request verifies in a step: the caller's own guess, and a tree from the store beside it.

Drafts change how many passes a turn takes, never what it says. The store is told
what was sampled, and the budget what a step cost and gained. Scored requests
"draft" the tokens that they are to score, and the store never hears of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.local.config import LocalEngineConfig, Speculation
from turntree.agents.engines.local.forward.plan import StepPlan
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.local.stats import EngineStats
from turntree.spec_tree import DraftBatch
from turntree.spec_tree.budget.draft_budget import Allowance, DraftBudget
from turntree.spec_tree.rules.verify import Verified

if TYPE_CHECKING:
    from turntree.spec_tree import SpecForest

Ints = NDArray[np.int64]

LOGITS = 1 << 26
"""Logits that the guesses of one step may ask for together."""


class Proposal(NamedTuple):
    """The drafts of one step."""

    draft: DraftBatch
    """One tree a row."""
    guessed: Ints
    """How many nodes of each row, from the first, are the caller's guess, shape (rows,)."""


class Drafter:
    """Asks the store, if there is one, and keeps it informed."""

    def __init__(
        self, config: LocalEngineConfig, forest: SpecForest | None, stats: EngineStats, vocabulary: int
    ) -> None:
        self._config = config
        self._forest = forest
        self._stats = stats
        self._vocabulary = vocabulary
        speculation = config.speculation
        adaptive = speculation is not None and speculation.adaptive
        self._budget = DraftBudget(speculation.min_probability) if speculation is not None and adaptive else None

    def propose(self, rows: Sequence[Request], ready: NDArray[np.bool_]) -> Proposal:
        """Drafts for the requests of a step.

        Args:
            rows: The requests.
            ready: Which of them draw in this step; the others still read their prompts, shape (rows,).
        """
        at = [b for b, request in enumerate(rows) if ready[b] and not request.scoring]
        draft = spread(self._from_store([rows[b] for b in at]), at, len(rows))
        guesses = self._guesses([r if now else None for r, now in zip(rows, ready, strict=True)])
        if not any(guesses):
            return Proposal(draft, np.zeros(len(rows), np.int64))
        return Proposal(with_guesses(draft, guesses), np.array([len(g) for g in guesses], np.int64))

    def _guesses(self, rows: Sequence[Request | None]) -> list[list[int]]:
        share = LOGITS // self._vocabulary // max(1, sum(bool(r and r.guess) for r in rows))
        most = max(1, min(self._config.prefill_chunk, share))
        return [[] if r is None else r.guess[r.sampled : r.sampled + min(most, self.room(r) - 1)] for r in rows]

    def room(self, request: Request) -> int:
        """Tokens that a request may still sample, or positions that it has still to score."""
        if request.scoring:
            return request.positions - request.scored
        left = self._config.max_context - len(request.tokens)
        return min(request.sampling.max_tokens - request.sampled, left)

    def _from_store(self, asking: list[Request]) -> DraftBatch:
        speculation = self._config.speculation
        if self._forest is None or speculation is None or not asking:
            return DraftBatch.empty(len(asking))
        began = time.perf_counter()
        draft = self._ask(asking, self._forest, speculation)
        self._stats.draft_seconds += time.perf_counter() - began
        return draft

    def _ask(self, asking: list[Request], forest: SpecForest, speculation: Speculation) -> DraftBatch:
        self._begin([r for r in asking if r.handle is None], forest)
        most = speculation.max_step_nodes or speculation.max_nodes * len(asking)
        allowed = Allowance(speculation.min_probability, most)
        if self._budget is not None:
            allowed = self._budget.allow(len(asking), most=most)
        if allowed.nodes == 0:
            return DraftBatch.empty(len(asking))
        return forest.draft(
            [r.handle for r in asking if r.handle is not None],
            max_nodes=speculation.max_nodes,
            room=[min(speculation.max_depth, self.room(r) - 1) for r in asking],
            min_probability=allowed.min_probability,
            chain=speculation.chain,
            total_nodes=allowed.nodes,
        )

    def _begin(self, requests: list[Request], forest: SpecForest) -> None:
        """Name turns to the store, with what they were asked: a turn is drafted from its own dialogue too."""
        if not requests:
            return
        asked = [np.array(r.prompt, np.int32) for r in requests]
        handles = forest.begin([r.state for r in requests], asked)
        for request, handle in zip(requests, handles, strict=True):
            request.handle = handle

    def commit(self, rows: Sequence[Request], tokens: Sequence[list[int]]) -> None:
        """Tell the store what was sampled."""
        if self._forest is None:
            return
        began = time.perf_counter()
        live = [(r.handle, t) for r, t in zip(rows, tokens, strict=True) if r.handle is not None]
        self._forest.commit([handle for handle, _ in live], [t for _, t in live])
        self._stats.draft_seconds += time.perf_counter() - began

    def end(self, request: Request, *, keep: bool) -> None:
        """The turn is over; ``keep`` says whether its tokens may draft others."""
        if request.handle is not None and self._forest is not None:
            self._forest.end([request.handle], keep=keep)
            request.handle = None

    def learn(self, step: StepPlan, verified: Verified, seconds: float) -> None:
        """Tell the budget what a step of store drafts cost and gained; steps that mostly read prompts say little."""
        draft, rows = step.draft, len(step.slot)
        if self._budget is None or len(verified.emitted) < rows:
            return
        if len(step.tokens) - len(draft.tokens) > 2 * rows + 16:
            return
        accepted = np.zeros(len(draft.tokens), bool)
        depth, row = np.nonzero(verified.path >= 0)
        accepted[draft.offsets[row] + verified.path[depth, row]] = True
        self._budget.observe(
            rows=rows,
            tokens=len(step.tokens),
            estimates=draft.probabilities,
            accepted=accepted,
            seconds=seconds,
        )


def spread(draft: DraftBatch, at: Sequence[int], rows: int) -> DraftBatch:
    """The same trees as rows ``at`` of ``rows`` rows; the others have none."""
    if len(at) == rows:
        return draft
    counts = np.zeros(rows, np.int64)
    counts[np.asarray(at, np.int64)] = np.diff(draft.offsets)
    return _with_counts(draft, counts)


def select(draft: DraftBatch, rows: Ints) -> DraftBatch:
    """The trees of some rows, in ascending order."""
    counts = np.diff(draft.offsets)
    if len(rows) == draft.rows:
        return draft
    kept = np.zeros(draft.rows, bool)
    kept[rows] = True
    nodes = np.repeat(kept, counts)
    return DraftBatch(
        tokens=draft.tokens[nodes],
        parents=draft.parents[nodes],
        depths=draft.depths[nodes],
        probabilities=draft.probabilities[nodes],
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts[rows])]),
    )


def with_guesses(draft: DraftBatch, guesses: Sequence[Sequence[int]]) -> DraftBatch:
    """Each row's guess as a chain, and after it the nodes of its tree that are not on the chain."""
    tokens: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    probabilities: list[float] = []
    counts = np.zeros(draft.rows, np.int64)
    for b, guess in enumerate(guesses):
        start = len(tokens)
        tokens += guess
        parents += range(-1, len(guess) - 1)
        depths += range(1, len(guess) + 1)
        probabilities += [1.0] * len(guess)
        place = {-1: -1}
        for node in range(int(draft.offsets[b]), int(draft.offsets[b + 1])):
            token, depth = int(draft.tokens[node]), int(draft.depths[node])
            above = place[int(draft.parents[node])]
            if above == depth - 2 and depth <= len(guess) and guess[depth - 1] == token:
                place[node - int(draft.offsets[b])] = depth - 1
                continue
            place[node - int(draft.offsets[b])] = len(tokens) - start
            tokens.append(token)
            parents.append(above)
            depths.append(depth)
            probabilities.append(float(draft.probabilities[node]))
        counts[b] = len(tokens) - start
    return DraftBatch(
        tokens=np.array(tokens, np.int32),
        parents=np.array(parents, np.int32),
        depths=np.array(depths, np.int32),
        probabilities=np.array(probabilities, np.float32),
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
    )


def _with_counts(draft: DraftBatch, counts: Ints) -> DraftBatch:
    return DraftBatch(
        tokens=draft.tokens,
        parents=draft.parents,
        depths=draft.depths,
        probabilities=draft.probabilities,
        offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]),
    )
