"""Drafts of each request in a step: the caller's turn-level draft, and a tree from the draft store.

A request that scores given tokens passes these through the model as its draft. The store never sees scored tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.drafting.session import DraftingSession
from turntree.agents.engines.drafting.step_bound import most_drafted
from turntree.agents.engines.drafting.trees import spread, with_turn_drafts, within
from turntree.agents.engines.local.config import LocalEngineConfig
from turntree.agents.engines.local.forward.plan import StepPlan
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.local.stats import EngineStats
from turntree.spec_tree import DraftBatch
from turntree.spec_tree.budget.draft_budget import Allowance, DraftBudget
from turntree.spec_tree.rules.verify import Verified

if TYPE_CHECKING:
    from turntree.spec_tree import SpecForest

Ints = NDArray[np.int64]

LOGITS = 1 << 26  #: maximum logits that the drafts of one step may need together


class Proposal(NamedTuple):
    draft: DraftBatch  #: one tree per row
    turn_drafted: Ints  #: number of each row's leading nodes that are the caller's draft, shape (rows,)


class Drafter:
    def __init__(
        self, config: LocalEngineConfig, forest: SpecForest | None, stats: EngineStats, vocabulary: int, device: str
    ) -> None:
        self._config = config
        self._device = device
        self._session = DraftingSession(forest=forest)
        self._stats = stats
        self._vocabulary = vocabulary
        speculation = config.speculation
        adaptive = speculation is not None and speculation.adaptive
        self._budget = DraftBudget(speculation.min_probability) if speculation is not None and adaptive else None

    def propose(self, rows: Sequence[Request], ready: NDArray[np.bool_]) -> Proposal:
        """Return drafts for the requests of a step.

        Args:
            ready: Whether each request samples or scores in this step; else its prompt is unfinished, shape (rows,).
        """
        at = [b for b, request in enumerate(rows) if ready[b] and not request.scoring]
        draft = spread(self._from_store([rows[b] for b in at]), at, len(rows))
        turn_drafts = self._turn_drafts([r if now else None for r, now in zip(rows, ready, strict=True)])
        if not any(turn_drafts):
            return Proposal(draft, np.zeros(len(rows), np.int64))
        return Proposal(with_turn_drafts(draft, turn_drafts), np.array(list(map(len, turn_drafts)), np.int64))

    def _turn_drafts(self, rows: Sequence[Request | None]) -> list[list[int]]:
        # Each token of a turn-level draft needs a row of logits, so requests with such drafts share the bound.
        share = LOGITS // self._vocabulary // max(1, sum(bool(r and r.turn_draft) for r in rows))
        most = max(1, min(self._config.prefill_chunk, share))
        return [
            r.turn_drafted(min(most, self.tokens_left(r) - 1)) if r is not None and r.turn_draft else [] for r in rows
        ]

    def tokens_left(self, request: Request) -> int:
        """Return how many tokens a request may still sample, or positions it still has to score."""
        if request.scoring:
            return request.positions - request.scored
        most = min(len(request.prompt) + request.sampling.max_tokens, self._config.max_context)
        return most - len(request.tokens)

    def _from_store(self, asking: list[Request]) -> DraftBatch:
        speculation = self._config.speculation
        if self._session.forest is None or speculation is None or not asking:
            return DraftBatch.empty(len(asking))
        with self._timed():
            new = [r for r in asking if r.handle is None]
            self._session.begin(new, [r.state for r in new], [r.prompt for r in new])
            whole = speculation.max_nodes * len(asking)
            most = most_drafted(speculation.max_step_nodes, len(asking), device=self._device, most=whole)
            allowed = Allowance(speculation.min_probability, most)
            if self._budget is not None:
                allowed = self._budget.allow(len(asking), most=most)
            draft = self._session.draft(
                asking,
                max_nodes=speculation.max_nodes,
                max_depths=[min(speculation.max_depth, self.tokens_left(r) - 1) for r in asking],
                min_probability=allowed.min_probability,
                chain=speculation.chain,
                total_nodes=allowed.nodes,
            )
        return within(draft, self._vocabulary)  # imported turns may have tokens that this model does not know

    def commit(self, rows: Sequence[Request], tokens: Sequence[list[int]]) -> None:
        with self._timed():
            self._session.commit(rows, tokens)

    def end(self, requests: Sequence[Request], *, keep: bool) -> None:
        """End turns; ``keep`` stores them as drafts for other turns."""
        self._session.end(requests, keep=keep)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        with self._session.timed():
            yield
        # The device is idle while the store works: drafts come before the pass, commits after its tokens are sampled.
        self._stats.draft_seconds = self._stats.draft_idle_seconds = self._session.counts.draft_seconds

    def learn(self, step: StepPlan, verified: Verified, seconds: float) -> None:
        # Steps that mostly process prompts say little about drafts, so do not learn from them.
        draft, rows = step.draft, len(step.slot)
        if self._budget is None or len(verified.emitted) < rows:
            return
        if len(step.tokens) - len(draft.tokens) > 2 * rows + 16:
            return
        accepted = np.zeros(len(draft.tokens), bool)
        depth, row = np.nonzero(verified.path >= 0)
        accepted[draft.offsets[row] + verified.path[depth, row]] = True
        self._budget.observe(
            rows=rows, tokens=len(step.tokens), estimates=draft.probabilities, accepted=accepted, seconds=seconds
        )
