"""An engine around an engine: draft a whole turn, generate the turn, label its tokens with their exactness level.

The sources of drafts are asked in order, and the first draft is used. There are two ways to verify a draft:

- Replay: the engine draws the turn again with the seed that drew the draft, and keeps the draft while both agree.
- Ratio rule: one scoring pass keeps tokens by the ratio of new to old probability, and the engine samples the rest.

Every source, the monitors, the counters and the draft sharing between replicas learn from every finished turn.

A draft decides how many passes a turn takes. With an exact rule, it never changes the turn's distribution.
``Completion.levels`` states how exact each token is (A to D, ``spec_tree.rules.level``). Call ``close_step`` after
every weight update.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from turntree.agents.engines.local.stats import EngineStats
from turntree.agents.engines.monitors import Monitors
from turntree.agents.engines.protocol import (
    Completion,
    DraftStats,
    Engine,
    FinishReason,
    Sampling,
    Scores,
    ScoringEngine,
    TurnRequest,
    derive_seed,
)
from turntree.agents.engines.reverified import shared
from turntree.agents.engines.splice import join, narrowed
from turntree.agents.turn_drafts.idle_slots import IdleSlots
from turntree.agents.turn_drafts.source import DraftedRequest, Drawn, Source, TurnDraft
from turntree.agents.turn_drafts.turn_storage import within
from turntree.agents.turn_drafts.turn_verification import verify
from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.level import Level


class PrefetchedPasses:
    """Passes over stored turns that start before the turns are requested; each result is handed out once.

    A prefetched pass has the prompt, tokens, noise and limits that the turn's own pass would have. If the turn is never
    requested, its result is dropped, although the engine's draft store has already learnt the tokens.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}

    def begin(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
        """Start a pass; ``False`` if it was started before."""
        if key in self._running:
            return False
        task = self._running[key] = asyncio.create_task(work())
        # Read the exception of a pass whose turn is never requested; otherwise asyncio logs it as never retrieved.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return True

    def has(self, key: Hashable) -> bool:
        return key in self._running

    async def result(self, key: Hashable) -> Any:
        """Return the result of a pass; ``None`` if no pass was started or the pass failed."""
        task = self._running.pop(key, None)
        if task is None:
            return None
        try:
            return await task
        except Exception:  # the turn's own request may yet succeed
            return None

    def drop(self) -> list[asyncio.Task[Any]]:
        """Cancel and return the passes that no request waits for."""
        dropped = list(self._running.values())
        self._running = {}
        for task in dropped:
            task.cancel()
        return dropped


def turn_key(request: TurnRequest) -> Hashable:
    return tuple(request.prompt_ids), request.sampling, tuple(request.draft)


def score_key(prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, top: int) -> Hashable:
    # Of the sampling parameters, only the transforms change scores.
    transforms = replace(sampling, seed=None, max_tokens=1, stop_token_ids=(), top_logprobs=0)
    return tuple(prompt_ids), tuple(token_ids), transforms, top


Remember = Callable[[DialogueState, Sequence[int]], None]  #: Takes a whole turn, as ``SpecForest.insert``.


class DraftedTurns:
    """An ``Engine`` whose turns begin with drafts.

    Args:
        engine: Generates turns; it must also score tokens if a source has drafts with a ratio rule.
        sources: Sources of drafts, asked in this order.
        slots: The engine's slots, if precomputed turns may hold some of them.
        remember: Called with each turn verified by the ratio rule, for example ``SpecForest.insert``. The engine
            sampled only the rest of such a turn, so its draft store lacks the whole turn.
        note: Called with each finished turn of training.
        has_imported: Whether the draft store has imported turns (warm start). They may have been drawn with this run's
            noise, so the monitors then test no acceptance.
    """

    def __init__(
        self,
        engine: Engine,
        sources: Sequence[Source] = (),
        *,
        slots: IdleSlots | None = None,
        remember: Remember | None = None,
        note: Remember | None = None,
        has_imported: bool = False,
    ) -> None:
        self.engine = engine
        self.monitors = Monitors()
        self.counted = EngineStats()  #: counters of the finished turns, without precomputed turns
        self._sources = tuple(sources)
        self._slots = slots
        self._remember = remember
        self._note = note
        self._has_imported = has_imported
        self._prefetched = PrefetchedPasses()

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn, for this step or a later step; use the request's own draft if no source has a draft."""
        if request.precomputed_for:
            return await self._precompute(request)
        # With repeated noise, the draft store has already seen the outcome: accepted drafts then test nothing.
        repeats = any(source.repeats(request) for source in self._sources)
        counts = not repeats and self.monitors.first_use(request.sampling.seed)
        drawn = await self._draw(self._wanted(request))
        for source in self._sources:
            source.record(drawn)
        completion = drawn.completion
        if completion.top is not None and drawn.request.sampling.top_logprobs != request.sampling.top_logprobs:
            completion = replace(completion, top=narrowed(completion.top, request.sampling.top_logprobs))
        if counts:
            untested = replace(completion, draft=completion.draft.untested())
            self.monitors.add([untested if self._has_imported else completion])
        self.count(len(request.prompt_ids), len(completion.token_ids), completion.cached_tokens, completion.draft)
        if self._note is not None and not drawn.aborted and request.reuse and request.state is not None:
            self._note(request.state, completion.token_ids)
        return completion

    async def score(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        """Score tokens by the engine, or return the result of a prefetched pass."""
        scores: Scores | None = await self._prefetched.result(score_key(prompt_ids, token_ids, sampling, top))
        return scores or await self._score(prompt_ids, token_ids, sampling, top)

    def close_step(self, step: int = 0, *, trained: bool = True) -> dict[str, float]:
        """Record that the policy was updated; return the monitors' z-scores of the step.

        ``trained`` tells whether the policy may have been trained on the turns until now.
        """
        self._prefetched.drop()
        for source in self._sources:
            source.close_step(step, trained=trained)
        return self.monitors.close_step()

    async def cancel_prefetch(self) -> None:
        """Cancel all prefetched passes and wait for their end, before the engine sleeps or is updated."""
        await asyncio.gather(*self._prefetched.drop(), return_exceptions=True)

    def count(self, prompt_tokens: int, tokens: int, cached_tokens: int, draft: DraftStats) -> None:
        counted = self.counted
        counted.requests += 1
        counted.prompt_tokens += prompt_tokens
        counted.cached_tokens += cached_tokens
        counted.tokens += tokens
        counted.verify_steps += draft.verify_steps
        counted.drafted += draft.drafted
        counted.accepted += draft.accepted

    def counters(self) -> dict[str, float]:
        return {name: value for source in self._sources for name, value in source.counters().items()}

    def _wanted(self, request: TurnRequest) -> TurnRequest:
        for source in self._sources:
            request = source.wanted(request)
        return request

    async def _precompute(self, request: TurnRequest) -> Completion:
        for source in self._sources:
            if (turn := await source.precompute(request)) is not None:
                return turn
        return Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT)

    async def _draw(self, request: TurnRequest) -> Drawn:
        drafts = (source.turn_draft(request) for source in self._sources)
        turn_draft = next((draft for draft in drafts if draft is not None), None)
        if turn_draft is None:
            return await self._sample(request)
        begun = 0  # prefetched passes started now
        if turn_draft.later is not None:
            # Each later prompt contains the earlier prompts: an engine that computes the last one first caches all.
            begun = sum(any(self._prefetch(later) for later in turns) for turns in reversed(turn_draft.later))
            await asyncio.sleep(0)  # always, so that siblings keep their order
        drawn = await (self._replay if turn_draft.rule is None else self._verify_and_continue)(request, turn_draft)
        return replace(drawn, begun=begun)

    async def _sample(self, request: TurnRequest) -> Drawn:
        # Even without a draft, this seed's noise may have been used before; the level must say so.
        seed = request.sampling.seed
        level = next((level for source in self._sources if (level := source.level(seed)) is not None), None)
        completion = await self._generate(request)
        if level is not None:
            completion = _with_used_noise(completion, level)
        return Drawn(request=request, turn_draft=None, completion=completion, seed=seed)

    async def _replay(self, request: TurnRequest, turn_draft: TurnDraft) -> Drawn:
        replay_request = _redraw(request, turn_draft)
        completion: Completion | None = await self._prefetched.result(turn_key(replay_request))
        early = completion is not None and completion.finish_reason is not FinishReason.ABORT
        if completion is None or not early:
            completion = await self._generate(replay_request)
        return Drawn(
            request=request,
            turn_draft=turn_draft,
            completion=_with_used_noise(completion, turn_draft.level),
            seed=turn_draft.seed,
            kept=shared(turn_draft.tokens, completion.token_ids),
            early=early,
        )

    async def _verify_and_continue(self, request: TurnRequest, turn_draft: TurnDraft) -> Drawn:
        assert turn_draft.stored is not None
        assert turn_draft.rule is not None
        assert turn_draft.most is not None
        prompt, sampling = tuple(request.prompt_ids), request.sampling
        early = self._prefetched.has(score_key(prompt, turn_draft.tokens, sampling, turn_draft.rule.top))
        verified = await verify(
            self, prompt, turn_draft.stored, turn_draft.tokens, sampling, turn_draft.rule, turn_draft.level
        )
        head = verified.head
        if head.token_ids[-1] in sampling.stop_token_ids:
            done = replace(head, finish_reason=FinishReason.STOP)
        elif len(head.token_ids) == turn_draft.most:
            done = replace(head, finish_reason=FinishReason.LENGTH)
        else:
            assert sampling.seed is not None
            whole, token_limit = prompt + head.token_ids, turn_draft.most - len(head.token_ids)
            # Derive another seed, because the rest must not share noise with the coins of the ratio rule.
            rest = replace(sampling, seed=derive_seed(sampling.seed, 4), max_tokens=token_limit)
            state = within(request.state, whole)
            done = join(head, await self._generate(TurnRequest(whole, rest, state=state)))
        aborted = done.finish_reason is FinishReason.ABORT
        if self._remember is not None and request.state is not None and not aborted:
            self._remember(request.state, done.token_ids)
        return Drawn(
            request=request,
            turn_draft=turn_draft,
            completion=done,
            seed=None,
            kept=verified.kept,
            wider=verified.wider,
            early=early,
        )

    def _prefetch(self, later: DraftedRequest) -> bool:
        request, turn_draft = later
        if turn_draft.rule is None:
            replay_request = _redraw(request, turn_draft)
            return self._prefetched.begin(turn_key(replay_request), lambda: self._generate(replay_request))
        scored = request.prompt_ids, turn_draft.tokens, request.sampling, turn_draft.rule.top
        return self._prefetched.begin(score_key(*scored), lambda: self._score(*scored))

    async def _generate(self, request: TurnRequest) -> Completion:
        async with nullcontext() if self._slots is None else self._slots.needed():
            return await self.engine.generate(request)

    async def _score(self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, top: int) -> Scores:
        assert isinstance(self.engine, ScoringEngine)
        async with nullcontext() if self._slots is None else self._slots.needed():
            return await self.engine.score(tuple(prompt_ids), token_ids, sampling, top=top)


def _redraw(request: TurnRequest, turn_draft: TurnDraft) -> TurnRequest:
    # The request that draws the draft's turn again, by the seed that drew the draft.
    sampling = replace(request.sampling, seed=turn_draft.seed)
    return replace(request, sampling=sampling, draft=turn_draft.tokens[: sampling.max_tokens])


def _with_used_noise(completion: Completion, level: Level) -> Completion:
    # The draft store has already seen tokens drawn with this noise, so accepted drafts must not enter the monitors.
    return replace(completion, levels=str(level) * len(completion.token_ids), draft=completion.draft.untested())
