"""Turns precomputed for the next training step in idle slots of the engine, as drafts of that step.

A precomputed turn is generated before its step requests it, with the seed that the step will use. When the step
requests the turn, the current policy verifies the precomputed tokens in one pass: it draws the turn again with that
seed (seeded replay). The result equals plain decoding with the seed under the current policy, token for token. The
policy was not trained on the precomputed tokens, so the turn has exactness level B.

A requested turn never waits for a precomputed turn. A precomputed turn that loses its slot, to a requested turn or to a
weight update, keeps its tokens and continues from them later.

Not supported: sampling without a seed, because the noise of the later step is then unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Protocol

from turntree.agents.engines.protocol import Completion, Engine, FinishReason, TurnRequest
from turntree.agents.engines.reverified import shared
from turntree.agents.turn_drafts.config import RunAheadConfig
from turntree.agents.turn_drafts.idle_slots import IdleSlots
from turntree.agents.turn_drafts.precomputed_store import PrecomputedStore
from turntree.agents.turn_drafts.source import Drawn, Source, TurnDraft
from turntree.agents.turn_drafts.turn_storage import storage_key
from turntree.spec_tree.rules.level import Level


class RunAheadEngine(Engine, Protocol):
    """An engine that also takes turns for later steps (``TurnRequest.precomputed_for``)."""

    async def abort_precomputed(self) -> object:
        """End all precomputed turns with their tokens so far."""


@dataclass(slots=True, kw_only=True)
class RunAheadStats:
    """Counters since creation."""

    turns: int = 0  #: precomputed turns started
    tokens: int = 0  #: tokens precomputed
    offered: int = 0  #: precomputed tokens verified for their step
    promoted: int = 0  #: precomputed tokens that became part of rollouts
    wasted: int = 0  #: precomputed tokens that were rejected or never requested
    preempted: int = 0  #: times that a precomputed turn gave its slot to a requested turn
    refused: int = 0  #: turns not promoted because the policy was trained on their noise


class PrecomputedTurns(Source):
    """Precomputes turns of later steps, and offers them as drafts in their step.

    ``store`` has turns from a snapshot. ``slots`` is needed if the engine does not limit precomputed turns itself.
    ``noise(seed, steps)`` returns the noise seed of a request with ``seed`` once ``steps`` more steps are closed.
    """

    def __init__(
        self,
        engine: RunAheadEngine,
        config: RunAheadConfig,
        store: PrecomputedStore | None = None,
        *,
        slots: IdleSlots | None = None,
        noise: Callable[[int, int], int] | None = None,
    ) -> None:
        self.config = config
        self.store = PrecomputedStore(max_tokens=config.max_tokens) if store is None else store
        self._engine = engine
        self._slots = slots
        self._noise = noise
        self._stats = RunAheadStats()
        self._step = self._closed = 0  # latest step that has begun or ended, and latest step that has ended
        self._spent = 0  # tokens precomputed in this step
        self._active = True  # False while paused
        self._pending = 0  # requests that are in the engine, or wait for a slot
        self._changed = asyncio.Event()
        self._running: dict[asyncio.Task[Completion], int] = {}  # step that each precomputed turn is for
        #: results of running turns, by storage key and seed: a repeated request waits for the first one
        self._computing: dict[tuple[Hashable, int], asyncio.Future[Completion]] = {}

    @property
    def stats(self) -> RunAheadStats:
        counts, stats = self.store.counts, self._stats
        return replace(stats, refused=counts.refused, wasted=stats.offered - stats.promoted + counts.dropped)

    def counters(self) -> Mapping[str, float]:
        return {f"run_ahead_{name}": value for name, value in asdict(self.stats).items()}

    def turn_draft(self, request: TurnRequest) -> TurnDraft | None:
        seed = request.sampling.seed
        turn = None if seed is None else self.store.take(storage_key(request.prompt_ids, request.sampling), seed)
        return None if turn is None else TurnDraft(source=self, tokens=turn.tokens, level=Level.B, seed=seed)

    def level(self, seed: int | None) -> Level | None:
        # Precomputing a turn used the noise of its seed, also for turns with that seed at other prompts.
        if seed is None or not self.store.used(seed):
            return None
        return Level.C if seed in self.store.trained else Level.B

    def record(self, drawn: Drawn) -> None:
        if drawn.seed is not None and drawn.request.reuse:
            self.store.show(drawn.seed)
        turn_draft = drawn.from_source(self)
        if turn_draft is not None:
            self._stats.offered += len(turn_draft.tokens)
            self._stats.promoted += drawn.kept

    async def precompute(self, request: TurnRequest) -> Completion:
        """Sample a turn for the later step that the request names, with that step's seed.

        The result is marked as aborted, with the tokens so far, if the step has begun or the token budget is spent.
        """
        seed = request.sampling.seed
        if seed is None:
            raise ValueError("precomputing a turn needs the seed that its step will use, got sampling.seed=None")
        task = asyncio.current_task()
        assert task is not None
        if self._noise is not None:
            # A seed's noise changes with every closed step: use the noise of the turn's own step.
            seed = self._noise(seed, request.precomputed_for - 1 - self._closed)
        request = replace(request, prompt_ids=tuple(request.prompt_ids), sampling=replace(request.sampling, seed=seed))
        key = storage_key(request.prompt_ids, request.sampling), seed
        if key in self._computing:  # its caller was cancelled and asks again
            return await asyncio.shield(self._computing[key])
        result: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._computing[key], self._running[task] = result, request.precomputed_for
        try:
            result.set_result(await self._compute(request, *key))
        except Exception as error:
            result.set_exception(error)
        finally:
            del self._running[task], self._computing[key]
        return await result

    async def _compute(self, request: TurnRequest, key: Hashable, seed: int) -> Completion:
        step = request.precomputed_for
        turn = Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT)
        started = False
        # A turn that lost its slot starts again with its tokens as the draft, until its step begins or the budget is
        # spent.
        while await self._may_continue(step):
            kept = self.store.peek(key, seed)
            self.store.use(seed, step)
            self._stats.turns += not started
            started = True
            turn = await self._ask(replace(request, draft=kept))
            new = len(turn.token_ids) - shared(kept, turn.token_ids)
            self._stats.tokens += new
            self._spent += new
            if turn.finish_reason is not FinishReason.ABORT:
                self.store.put(key, seed, turn.token_ids, step=step)
                return turn
            if new:  # without new tokens, the abort may have come before the draft's end was verified: keep the draft
                self.store.put(key, seed, turn.token_ids, step=step)
            self._stats.preempted += self._active and step > self._step
        return replace(turn, finish_reason=FinishReason.ABORT)

    async def _ask(self, request: TurnRequest) -> Completion:
        self._pending += 1
        try:
            if self._slots is None:
                return await self._engine.generate(request)
            async with self._slots.idle() as admitted:
                if not admitted:
                    return Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT)
                return await self._engine.generate(request)
        finally:
            self._pending -= 1
            self._wake_waiting()

    async def _may_continue(self, step: int) -> bool:
        while step > self._step and not self._active:
            await self._changed.wait()
        return step > self._step and (self.config.tokens is None or self._spent < self.config.tokens)

    def _wake_waiting(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def begin_step(self, step: int) -> None:
        """Stop precomputing turns of ``step``, which is about to request them.

        Returns once the tokens precomputed for ``step`` are stored.
        """
        self._step = max(step, self._step)
        self._wake_waiting()
        late = [task for task, wanted in self._running.items() if wanted <= self._step]
        if late:
            await self.abort()
            await asyncio.wait(late)

    @property
    def active(self) -> bool:
        """Whether precomputing is not paused."""
        return self._active

    async def pause(self) -> None:
        """Stop precomputing until ``resume``; return once the tokens of running turns are stored."""
        self._active = False
        if self._pending:
            await self.abort()
        while self._pending:
            await self._changed.wait()

    def resume(self) -> None:
        self._active = True
        self._wake_waiting()

    async def abort(self) -> None:
        """End all precomputed turns with their tokens so far."""
        await (self._engine if self._slots is None else self._slots).abort_precomputed()

    def close_step(self, step: int, *, trained: bool = True) -> None:
        self._step, self._closed = max(step, self._step), step
        self._spent = 0
        self.store.close_step(step)
        self._wake_waiting()
