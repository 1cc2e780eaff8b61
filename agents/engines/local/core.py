"""The local engine's core: synchronous steps of continuous batching, on one thread.

A step admits waiting requests and gets drafts for all running requests at once. It then runs the model once over
everything new (prompts, last tokens, drafts, tokens to score) and keeps the tokens that the policy itself samples.
Without speculation the drafts are empty; nothing else differs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from turntree.agents.engines.drafting.trees import select
from turntree.agents.engines.local.config import LocalEngineConfig
from turntree.agents.engines.local.drafting import Drafter
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.local.forward.plan import Ints, StepPlan, attention_plan, plan_step
from turntree.agents.engines.local.forward.slots import SlotCache
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.local.sampling import emit
from turntree.agents.engines.local.scoring import score
from turntree.agents.engines.local.slot_pool import SlotPool, WaitQueue
from turntree.agents.engines.local.stats import EngineStats
from turntree.agents.engines.protocol import FinishReason
from turntree.spec_tree.rules.verify import Verified

if TYPE_CHECKING:
    from turntree.spec_tree import SpecForest

log = logging.getLogger(__name__)


class EngineCore:
    """Owns the model, the cache and the live requests. Not thread-safe."""

    def __init__(self, policy: Policy, config: LocalEngineConfig, forest: SpecForest | None) -> None:
        self.policy = policy
        self.config = config
        self.forest = forest if config.speculation is not None else None
        self.stats = EngineStats()
        self.version = 0
        self.asleep = False  #: the device's memory is released; nothing runs then
        self._drafter = Drafter(config, self.forest, self.stats, policy.vocabulary, policy.device.type)
        self.cache = SlotCache(config.slots, config.columns)  #: keys and values
        self._pool = SlotPool(self.cache)
        self._waiting = WaitQueue(config, self._pool)

    @property
    def busy(self) -> bool:
        return not self.asleep and bool(len(self._waiting) or self.live)

    @property
    def live(self) -> list[Request]:
        """Requests that hold a slot."""
        return self._pool.live

    def add(self, request: Request) -> None:
        self._waiting.add(request)

    def update_weights(self, named: Iterable[tuple[str, Tensor]], version: int | None) -> None:
        """Load new weights; running requests recompute their keys and values and continue with the new weights."""
        self.policy.update(named)
        self.version = self.version + 1 if version is None else version
        self._pool.forget()
        for request in self.live:
            if request.scoring:
                request.start_over()

    def forget_prefixes(self) -> None:
        self._pool.forget()

    def sleep(self) -> None:
        """Release the device's memory: keys and values are dropped, weights move to the host."""
        self.asleep = True
        self._pool.forget()
        self.cache.layers.clear()
        self.policy.leave_device()

    def wake(self) -> None:
        self.policy.return_to_device()
        self.asleep = False

    def abort_all(self) -> int:
        """End every request with its tokens so far and return their number."""
        return self._abort(lambda request: True)

    def abort_precomputed(self) -> int:
        """End every precomputed request with its tokens so far and return their number."""
        return self._abort(lambda request: request.ahead)

    def fail_all(self, error: Exception) -> None:
        def broke(request: Request) -> bool:  # true for every request, so that all end
            request.error = error
            return True

        self._abort(broke)
        self._pool.forget()

    @torch.inference_mode()
    def step(self) -> None:
        began = time.perf_counter()
        self._abort(lambda request: request.cancelled)
        self._finish(self._waiting.preempted(), FinishReason.ABORT)
        self._waiting.admit()
        rows = self._pool.runnable()
        step = self._run(rows) if rows else None
        seconds = time.perf_counter() - began
        self.stats.seconds += seconds
        if step is not None and step.verified is not None and not step.turn_drafted:
            self._drafter.learn(step.plan, step.verified, seconds)

    def _abort(self, ends: Callable[[Request], bool]) -> int:
        requests = [*(r for r in self.live if ends(r)), *self._waiting.take(ends)]
        self._finish(requests, FinishReason.ABORT)
        return len(requests)

    def _run(self, rows: list[Request]) -> _Step | None:
        # If the pass fails, each request gets its own pass. Only requests whose own pass fails end with an error.
        back = [request.mark() for request in rows]
        try:
            step = self._draw(rows)
        except Exception as error:  # boundary of a pass: a faulty request must not fail the others
            for undo in back:
                undo()
            if len(rows) > 1:
                for request in rows:
                    self._run([request])
                return None
            log.exception("a request failed in a pass of the local engine")
            (request,) = rows
            request.error, request.computed = error, 0  # its keys and values may be broken
            self._finish(rows, FinishReason.ABORT)
            return None
        self._settle(rows, step)
        return step

    def _draw(self, rows: list[Request]) -> _Step:  # plans and runs the pass, then samples and scores
        chunk = self.config.prefill_chunk
        left = np.array([r.pending for r in rows], np.int64)
        pending, ready = np.minimum(left, chunk), left <= chunk
        draft, turn_drafted = self._drafter.propose(rows, ready)
        plan = plan_step(
            slot=np.array([r.slot for r in rows], np.int64),
            computed=np.array([r.computed for r in rows], np.int64),
            pending=pending,
            pending_tokens=[r.tokens[r.computed : r.computed + chunk] for r in rows],
            draft=draft,
        )
        who = np.flatnonzero(ready)  # rows that sample or score, since this pass ends their prompts
        logits = self._forward(plan, who)
        for request, n in zip(rows, pending.tolist(), strict=True):
            request.computed += n
            request.version = self.version
        scores = np.array([r.scoring for r in rows])
        drawing, scoring = np.flatnonzero(ready & ~scores), np.flatnonzero(ready & scores)
        verified = None
        if len(drawing):
            verified = self._emit([rows[b] for b in drawing], plan, drawing, turn_drafted, who, logits)
        if len(scoring):
            own = _logits_of(scoring, who, plan, logits)
            score([rows[b] for b in scoring], select(plan.draft, scoring), own)
        return _Step(plan, verified, bool(turn_drafted.any()), drawing, scoring)

    def _forward(self, step: StepPlan, who: Ints) -> Tensor:
        began = time.perf_counter()
        device = self.policy.device
        counts = np.diff(step.draft.offsets)[who]
        last = step.start[who] + step.pending[who] - 1
        keep = np.repeat(last, counts + 1) + _within(counts + 1)  # tokens whose logits are needed
        plan = attention_plan(step, self.cache, windows=self.policy.windows, device=device, looped=self.policy.looped)
        logits = self.policy.logits(
            torch.from_numpy(step.tokens).to(device),
            torch.from_numpy(step.positions).to(device),
            torch.from_numpy(keep).to(device),
            plan,
        )
        self.stats.forward_passes += 1
        self.stats.model_seconds += time.perf_counter() - began
        return logits

    def _emit(
        self, drawing: list[Request], plan: StepPlan, at: Ints, turn_drafted: Ints, who: Ints, logits: Tensor
    ) -> Verified:
        token_limits = np.array([self._drafter.tokens_left(r) for r in drawing], np.int64)
        own = _logits_of(at, who, plan, logits)
        return emit(drawing, select(plan.draft, at), turn_drafted[at], token_limits, own, monitors=self.config.monitors)

    def _settle(self, rows: list[Request], step: _Step) -> None:
        stopped, full = [], []
        if step.verified is not None:
            at, plan = step.drawing, step.plan
            drawing = [rows[b] for b in at]
            self._keep_path(plan.slot[at], (plan.computed + plan.pending)[at], step.verified)
            drawn = [r.tokens[-n:] for r, n in zip(drawing, step.verified.emitted.tolist(), strict=True)]
            self._drafter.commit(drawing, drawn)
            for request, tokens in zip(drawing, drawn, strict=True):
                watched = request.ended_by_watch(tokens)  # ``TurnRequest.watch``: the caller may end the turn
                if watched or request.tokens[-1] in request.sampling.stop_token_ids:
                    stopped.append(request)
                elif self._drafter.tokens_left(request) <= 0:
                    full.append(request)
        self._finish(stopped, FinishReason.STOP)
        full += [rows[b] for b in step.scoring if self._drafter.tokens_left(rows[b]) <= 0]
        self._finish(full, FinishReason.LENGTH)

    def _keep_path(self, slot: Ints, base: Ints, verified: Verified) -> None:
        # Move the keys and values of accepted draft nodes to the columns right after the row's tokens.
        depth, row = np.nonzero(verified.path >= 0)
        node = verified.path[depth, row]
        moved = node != depth
        if moved.any():
            depth, row, node = depth[moved], row[moved], node[moved]
            device = self.policy.device
            self.cache.move(
                torch.from_numpy(slot[row]).to(device),
                torch.from_numpy(base[row] + node).to(device),
                torch.from_numpy(base[row] + depth).to(device),
            )

    def _finish(self, requests: Sequence[Request], reason: FinishReason) -> None:
        self._drafter.end(requests, keep=reason is not FinishReason.ABORT)
        for request in requests:
            request.finish = reason
            if request.slot >= 0:
                self._pool.park(request)
            if not request.ahead:
                self._count(request)
            request.deliver(request)

    def _count(self, request: Request) -> None:
        stats = self.stats
        stats.requests += 1
        stats.prompt_tokens += len(request.prompt)
        stats.cached_tokens += request.cached
        stats.tokens += 0 if request.scoring else request.sampled
        stats.scored += request.scored
        stats.verify_steps += request.verify_steps
        stats.drafted += request.drafted
        stats.accepted += sum(request.accepted)


class _Step(NamedTuple):
    plan: StepPlan
    verified: Verified | None  #: the sampled tokens, if any row sampled
    turn_drafted: bool  #: whether any row had a caller's draft or tokens to score
    drawing: Ints  #: rows that sampled
    scoring: Ints  #: rows that were scored


def _logits_of(at: Ints, who: Ints, plan: StepPlan, logits: Tensor) -> Tensor:
    # ``logits`` has the logits of the rows ``who``; return those of the rows ``at``, which are among them.
    if len(at) == len(who):
        return logits
    counts = np.diff(plan.draft.offsets) + 1
    start = np.zeros(len(counts), np.int64)
    start[who] = np.cumsum(counts[who]) - counts[who]
    nodes = np.repeat(start[at], counts[at]) + _within(counts[at])
    return logits[torch.from_numpy(nodes).to(logits.device)]


def _within(counts: Ints) -> Ints:  # 0 to n - 1 for each n in ``counts``, concatenated
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)
