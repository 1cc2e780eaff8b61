"""The engine's loop body: one step of continuous batching, synchronous, on one thread.

A step admits waiting requests, asks the store for drafts of all of them at
once, runs the model once over everything new (prompts, last tokens, drafts)
and keeps what the policy itself samples. Without speculation the draft is
empty; nothing else differs.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turntree.agents.engines.local.admission import leaders_first
from turntree.agents.engines.local.config import LocalEngineConfig
from turntree.agents.engines.local.model import Policy
from turntree.agents.engines.local.plan import Ints, StepPlan, attention_plan, plan_step
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.local.sampling import Transforms, draw
from turntree.agents.engines.local.slot_pool import SlotPool
from turntree.agents.engines.local.slots import SlotCache
from turntree.agents.engines.local.stats import EngineStats
from turntree.agents.engines.protocol import FinishReason
from turntree.spec_tree import DraftBatch
from turntree.spec_tree.budget import Allowance, DraftBudget
from turntree.spec_tree.noise import uniform
from turntree.spec_tree.verify import Verified, root, sample_then_match

if TYPE_CHECKING:
    from turntree.spec_tree import SpecForest

_EAGER = 1 << 21
"""Logits up to which all nodes are drawn at once; above, only the nodes that the walk reaches."""


class EngineCore:
    """Owns the model, the cache and the live requests. Not thread-safe."""

    def __init__(self, policy: Policy, config: LocalEngineConfig, forest: SpecForest | None) -> None:
        self.policy = policy
        self.config = config
        self.forest = forest if config.speculation is not None else None
        self.stats = EngineStats()
        self.version = 0
        speculation = config.speculation
        adaptive = speculation is not None and speculation.adaptive
        self._budget = DraftBudget(speculation.min_probability) if speculation is not None and adaptive else None
        drafts = 0 if speculation is None else speculation.max_nodes
        self._cache = SlotCache(config.slots, config.max_context + drafts)
        self._pool = SlotPool(self._cache)
        self._waiting: deque[Request] = deque()

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._waiting or self._pool.live)

    def add(self, request: Request) -> None:
        """Put a request in line."""
        self._waiting.append(request)

    def update_weights(self, named: Iterable[tuple[str, Tensor]], version: int | None) -> None:
        """Take new weights; live requests go on under them, their past recomputed."""
        self.policy.update(named)
        self.version = self.version + 1 if version is None else version
        self._pool.forget()

    def forget_prefixes(self) -> None:
        """Drop all keys and values."""
        self._pool.forget()

    def abort_all(self) -> int:
        """End every request with what it has.

        Returns:
            How many there were.
        """
        requests = [*self._pool.live, *self._waiting]
        self._waiting.clear()
        for request in requests:
            self._finish(request, FinishReason.ABORT)
        return len(requests)

    def fail_all(self, error: Exception) -> None:
        """A step broke: every request ends with the error."""
        for request in [*self._pool.live, *self._waiting]:
            request.error = error
        self.abort_all()
        self._pool.forget()

    @torch.inference_mode()
    def step(self) -> None:
        """Run the model once, if there is anything to run."""
        began = time.perf_counter()
        self._drop_cancelled()
        self._admit()
        rows = [request for request in self._pool.live if self._pool.follow(request)]
        step = self._run(rows) if rows else None
        seconds = time.perf_counter() - began
        self.stats.seconds += seconds
        if step is not None:
            self._learn(*step, seconds)

    def _admit(self) -> None:
        """Give free slots to waiting requests."""
        live = self._pool.live
        free = self.config.max_batch - len(live)
        if not self._waiting or free <= 0:
            return
        speculation = self.config.speculation
        if self.forest is not None and speculation is not None and speculation.leader_first:
            waiting = list(self._waiting)
            states = {r.state.exact: r.state for r in waiting}
            finished = self.forest.finished(list(states.values()))
            order = leaders_first(
                [r.state.exact for r in waiting],
                running={r.state.exact for r in live},
                known={exact for exact, turns in zip(states, finished, strict=True) if turns},
            )
            self._waiting = deque(waiting[index] for index in order)
        while self._waiting and free > 0 and self._pool.place(self._waiting[0]):
            self._waiting.popleft()
            free -= 1

    def _drop_cancelled(self) -> None:
        for request in [r for r in self._pool.live if r.cancelled]:
            self._finish(request, FinishReason.ABORT)
        for request in [r for r in self._waiting if r.cancelled]:
            self._waiting.remove(request)
            self._finish(request, FinishReason.ABORT)

    def _run(self, rows: list[Request]) -> tuple[StepPlan, Verified | None]:
        chunk = self.config.prefill_chunk
        pending = np.array([min(r.pending, chunk) for r in rows], np.int64)
        sampling = np.array([r.pending <= chunk for r in rows])
        draft = self._draft(rows, sampling)
        step = plan_step(
            slot=np.array([r.slot for r in rows], np.int64),
            computed=np.array([r.computed for r in rows], np.int64),
            pending=pending,
            pending_tokens=[r.tokens[r.computed : r.computed + chunk] for r in rows],
            draft=draft,
        )
        who = np.flatnonzero(sampling)
        logits = self._forward(step, who)
        for request, n in zip(rows, pending.tolist(), strict=True):
            request.computed += n
        if not len(who):
            return step, None
        return step, self._emit([rows[b] for b in who], _rows_of(draft, who), step, who, logits)

    def _learn(self, step: StepPlan, verified: Verified | None, seconds: float) -> None:
        """Tell the budget what the step cost and gained; steps that mostly read prompts say little."""
        draft, rows = step.draft, len(step.slot)
        if self._budget is None or verified is None or len(verified.emitted) < rows:
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

    def _draft(self, rows: list[Request], sampling: NDArray[np.bool_]) -> DraftBatch:
        speculation = self.config.speculation
        if self.forest is None or speculation is None or not sampling.any():
            return DraftBatch.empty(len(rows))
        began = time.perf_counter()
        asking = [r for r, ready in zip(rows, sampling, strict=True) if ready]
        self._begin([r for r in asking if r.handle is None])
        most = speculation.max_step_nodes or speculation.max_nodes * len(asking)
        allowed = Allowance(speculation.min_probability, most)
        if self._budget is not None:
            allowed = self._budget.allow(len(asking), most=most)
        if allowed.nodes == 0:
            self.stats.draft_seconds += time.perf_counter() - began
            return DraftBatch.empty(len(rows))
        draft = self.forest.draft(
            [r.handle for r in asking if r.handle is not None],
            max_nodes=speculation.max_nodes,
            room=[min(speculation.max_depth, self._room(r) - 1) for r in asking],
            min_probability=allowed.min_probability,
            chain=speculation.chain,
            total_nodes=allowed.nodes,
        )
        self.stats.draft_seconds += time.perf_counter() - began
        if len(asking) == len(rows):
            return draft
        counts = np.zeros(len(rows), np.int64)
        counts[sampling] = np.diff(draft.offsets)
        return _with_counts(draft, counts)

    def _begin(self, requests: list[Request]) -> None:
        """Name turns to the store, with what they were asked: a turn is drafted from its own dialogue too."""
        assert self.forest is not None
        if not requests:
            return
        asked = [np.array(r.prompt, np.int32) for r in requests]
        handles = self.forest.begin([r.state for r in requests], asked)
        for request, handle in zip(requests, handles, strict=True):
            request.handle = handle

    def _room(self, request: Request) -> int:
        """Tokens that a request may still sample."""
        return min(request.sampling.max_tokens - request.sampled, self.config.max_context - len(request.tokens))

    def _forward(self, step: StepPlan, who: Ints) -> Tensor:
        began = time.perf_counter()
        device = self.policy.device
        counts = np.diff(step.draft.offsets)[who]
        last = step.start[who] + step.pending[who] - 1
        keep = np.repeat(last, counts + 1) + _within(counts + 1)
        plan = attention_plan(step, self._cache, windows=self.policy.windows, device=device)
        logits = self.policy.logits(
            torch.from_numpy(step.tokens).to(device),
            torch.from_numpy(step.positions).to(device),
            torch.from_numpy(keep).to(device),
            plan,
        )
        self.stats.forward_passes += 1
        self.stats.model_seconds += time.perf_counter() - began
        return logits

    def _emit(self, rows: list[Request], draft: DraftBatch, step: StepPlan, who: Ints, logits: Tensor) -> Verified:
        room = np.array([self._room(r) for r in rows], np.int64)
        ends = [frozenset(r.sampling.stop_token_ids) for r in rows]

        def stops(at: Ints, tokens: Ints) -> NDArray[np.bool_]:
            return np.array([t in ends[b] for b, t in zip(at.tolist(), tokens.tolist(), strict=True)], bool)

        verified = sample_then_match(draft, _Draws(rows, draft, logits), room, stops)
        self._keep_path(step.slot[who], (step.computed + step.pending)[who], verified)
        committed = []
        for b, request in enumerate(rows):
            n = int(verified.emitted[b])
            tokens = verified.tokens[:n, b].tolist()
            matched = verified.path[:n, b] >= 0
            request.tokens += tokens
            request.logprobs += verified.logprobs[:n, b].tolist()
            request.accepted += matched.tolist()
            request.computed += int(matched.sum())
            request.verify_steps += 1
            request.drafted += int(draft.offsets[b + 1] - draft.offsets[b])
            request.version = self.version
            committed.append(tokens)
        self._commit(rows, committed)
        for request, tokens, end in zip(rows, committed, ends, strict=True):
            if tokens[-1] in end:
                self._finish(request, FinishReason.STOP)
            elif self._room(request) <= 0:
                self._finish(request, FinishReason.LENGTH)
        return verified

    def _keep_path(self, slot: Ints, base: Ints, verified: Verified) -> None:
        """Move the keys and values of accepted nodes to the columns that follow the row's tokens."""
        depth, row = np.nonzero(verified.path >= 0)
        node = verified.path[depth, row]
        moved = node != depth
        if moved.any():
            depth, row, node = depth[moved], row[moved], node[moved]
            device = self.policy.device
            self._cache.move(
                torch.from_numpy(slot[row]).to(device),
                torch.from_numpy(base[row] + node).to(device),
                torch.from_numpy(base[row] + depth).to(device),
            )

    def _commit(self, rows: list[Request], tokens: list[list[int]]) -> None:
        if self.forest is None:
            return
        began = time.perf_counter()
        live = [(r.handle, t) for r, t in zip(rows, tokens, strict=True) if r.handle is not None]
        self.forest.commit([handle for handle, _ in live], [t for _, t in live])
        self.stats.draft_seconds += time.perf_counter() - began

    def _finish(self, request: Request, reason: FinishReason) -> None:
        request.finish = reason
        if request.handle is not None and self.forest is not None:
            self.forest.end([request.handle], keep=reason is not FinishReason.ABORT)
            request.handle = None
        if request.slot >= 0:
            self._pool.park(request)
        stats = self.stats
        stats.requests += 1
        stats.prompt_tokens += len(request.prompt)
        stats.cached_tokens += request.cached
        stats.tokens += request.sampled
        stats.verify_steps += request.verify_steps
        stats.drafted += request.drafted
        stats.accepted += sum(request.accepted)
        request.deliver(request)


class _Draws:
    """Draws from the logits of a step, at once where that is cheap, else where the walk gets to."""

    def __init__(self, rows: list[Request], draft: DraftBatch, logits: Tensor) -> None:
        device = logits.device
        self._logits = logits
        self._seeds = np.array([r.seed for r in rows], np.uint64)
        self._sampled = np.array([r.sampled for r in rows], np.int64)
        params = [r.sampling for r in rows]
        self._transforms = Transforms(
            temperature=torch.tensor([p.temperature for p in params], dtype=torch.float64, device=device),
            top_k=torch.tensor([p.top_k for p in params], device=device),
            top_p=torch.tensor([p.top_p for p in params], dtype=logits.dtype, device=device),
            greedy=any(p.temperature == 0 for p in params),
            truncates=any(p.top_k > 0 or p.top_p < 1 for p in params),
        )
        self._ready: tuple[Ints, NDArray[np.float64]] | None = None
        if logits.numel() <= _EAGER:
            counts = np.diff(draft.offsets) + 1
            depths = np.zeros(len(logits), np.int64)
            inner = np.ones(len(logits), bool)
            inner[root(draft)] = False
            depths[inner] = draft.depths
            self._ready = self._draw(np.repeat(np.arange(len(rows)), counts), None, depths)

    def __call__(self, rows: Ints, nodes: Ints, depth: int) -> tuple[Ints, NDArray[np.float64]]:
        if self._ready is not None:
            return self._ready[0][nodes], self._ready[1][nodes]
        return self._draw(rows, nodes, np.full(len(rows), depth, np.int64))

    def _draw(self, rows: Ints, nodes: Ints | None, depths: Ints) -> tuple[Ints, NDArray[np.float64]]:
        device = self._logits.device
        noise = uniform(self._seeds[rows], self._sampled[rows] + depths)
        drawn = draw(
            self._logits if nodes is None else self._logits[torch.from_numpy(nodes).to(device)],
            self._transforms.at(torch.from_numpy(rows).to(device)),
            torch.from_numpy(noise).to(device),
        )
        return drawn.tokens.cpu().numpy(), drawn.logprobs.double().cpu().numpy()


def _within(counts: Ints) -> Ints:
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def _rows_of(draft: DraftBatch, rows: Ints) -> DraftBatch:
    """The draft of some rows; the others have none."""
    return _with_counts(draft, np.diff(draft.offsets)[rows])


def _with_counts(draft: DraftBatch, counts: Ints) -> DraftBatch:
    """The same nodes over other rows, ``counts`` of them each."""
    return replace(draft, offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))
