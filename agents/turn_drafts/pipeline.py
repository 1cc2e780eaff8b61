"""The one engine around an engine: drafts of a turn's tokens first, then one generation, then its exactness.

The sources are asked in order. The first draft is verified by the engine: drawn again
with the noise that drew it, or kept by the ratio rule and continued. Every source
learns of every finished turn, and so do the monitors, the counters and the hub.

Invariant: a draft decides how many passes a turn takes, never what it is drawn from; the
letter of ``Completion.levels`` says what its tokens may claim.

Call ``close_step`` after every update of the policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

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
from turntree.agents.turn_drafts.prefetch import PrefetchedPasses, score_key, turn_key
from turntree.agents.turn_drafts.source import DraftedRequest, Drawn, Source, TurnDraft
from turntree.agents.turn_drafts.turn_storage import within
from turntree.agents.turn_drafts.turn_verification import verify
from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.level import Level

Remember = Callable[[DialogueState, Sequence[int]], None]
"""Takes a whole turn, such as a store of drafts or a hub does."""


class DraftedTurns:
    """An ``Engine`` whose turns begin with drafts; see the module's docstring.

    Args:
        engine: Generates, and scores where a draft is kept by the ratio rule.
        sources: Asked in this order.
        slots: The engine's slots, where precomputed turns may hold some of them.
        remember: Called with each turn that was continued, as the engine itself saw only the rest of it: a forest's
            ``insert``.
        note: Called with each finished turn of training.
        has_imported: Whether the store of drafts has turns of other runs, whose noise may be that of this one: monitors then
            test no acceptance.
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
        self.counted = EngineStats()
        """Counters of the finished turns, precomputed ones left out."""
        self._sources = tuple(sources)
        self._slots = slots
        self._remember = remember
        self._note = note
        self._has_imported = has_imported
        self._early = PrefetchedPasses()

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn, for this step or for a later one.

        The request's own draft is used where no source has a draft.

        Raises:
            ValueError: If a source cannot work with these sampling parameters.
        """
        if request.precomputed_for:
            return await self._precompute(request)
        # A store of drafts has seen what repeated noise sampled before.
        repeats = any(source.repeats(request) for source in self._sources)
        counts = not repeats and self.monitors.first_use(request.sampling.seed)
        drawn = await self._drawn(self._wanted(request))
        for source in self._sources:
            source.record(drawn)
        completion = drawn.completion
        if completion.top is not None and drawn.request.sampling.top_logprobs != request.sampling.top_logprobs:
            completion = replace(completion, top=narrowed(completion.top, request.sampling.top_logprobs))
        if counts:
            self.monitors.add(
                [replace(completion, draft=completion.draft.untested()) if self._has_imported else completion]
            )
        self.count(len(request.prompt_ids), len(completion.token_ids), completion.cached_tokens, completion.draft)
        if self._note is not None and not drawn.aborted and request.reuse and request.state is not None:
            self._note(request.state, completion.token_ids)
        return completion

    async def score(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        """The engine's own ``score``; a pass that began early is used once."""
        scores: Scores | None = await self._early.result(score_key(prompt_ids, token_ids, sampling, top))
        return scores or await self._score(prompt_ids, token_ids, sampling, top)

    def close_step(self, step: int = 0, *, trained: bool = True) -> dict[str, float]:
        """The policy was updated: what was sampled since the last call was trained on.

        Args:
            trained: Whether it may have been trained on the turns until now.

        Returns:
            The monitors' z-scores of the step.
        """
        self._early.drop()
        for source in self._sources:
            source.close_step(step, trained=trained)
        return self.monitors.close_step()

    async def end_early(self) -> None:
        """End the passes that began early; returns when none runs. Call it before the engine sleeps or is updated."""
        await asyncio.gather(*self._early.drop(), return_exceptions=True)

    def count(self, prompt_tokens: int, tokens: int, cached_tokens: int, draft: DraftStats) -> None:
        """Count a finished turn, whoever sampled it."""
        counted = self.counted
        counted.requests += 1
        counted.prompt_tokens += prompt_tokens
        counted.cached_tokens += cached_tokens
        counted.tokens += tokens
        counted.verify_steps += draft.verify_steps
        counted.drafted += draft.drafted
        counted.accepted += draft.accepted

    def counters(self) -> dict[str, float]:
        """The sources' counters since their creation."""
        return {name: value for source in self._sources for name, value in source.counters().items()}

    def _wanted(self, request: TurnRequest) -> TurnRequest:
        for source in self._sources:
            request = source.wanted(request)
        return request

    async def _precompute(self, request: TurnRequest) -> Completion:
        for source in self._sources:
            if (made := await source.precompute(request)) is not None:
                return made
        return Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT)

    async def _drawn(self, request: TurnRequest) -> Drawn:
        turn_draft = next(
            (turn_draft for source in self._sources if (turn_draft := source.turn_draft(request)) is not None), None
        )
        if turn_draft is None:
            return await self._sampled(request)
        begun = 0
        if turn_draft.later is not None:
            # The last prompt holds all others: an engine that computes it first has theirs in its cache.
            begun = sum(any(self._begin_early(one) for one in turns) for turns in reversed(turn_draft.later))
            await asyncio.sleep(0)  # whether any began or not: siblings keep their order
        drawn = await (self._replayed if turn_draft.rule is None else self._judged)(request, turn_draft)
        return replace(drawn, begun=begun)

    async def _sampled(self, request: TurnRequest) -> Drawn:
        """A turn without a draft; its noise may have been used nevertheless."""
        seed = request.sampling.seed
        level = next((level for source in self._sources if (level := source.level(seed)) is not None), None)
        completion = await self._generate(request)
        if level is not None:
            completion = _of_used_noise(completion, level)
        return Drawn(request=request, turn_draft=None, completion=completion, seed=seed)

    async def _replayed(self, request: TurnRequest, turn_draft: TurnDraft) -> Drawn:
        """The turn that the draft's noise draws."""
        asked = _redraw(request, turn_draft)
        completion: Completion | None = await self._early.result(turn_key(asked))
        early = completion is not None and completion.finish_reason is not FinishReason.ABORT
        if completion is None or not early:
            completion = await self._generate(asked)
        return Drawn(
            request=request,
            turn_draft=turn_draft,
            completion=_of_used_noise(completion, turn_draft.level),
            seed=turn_draft.seed,
            kept=shared(turn_draft.tokens, completion.token_ids),
            early=early,
        )

    async def _judged(self, request: TurnRequest, turn_draft: TurnDraft) -> Drawn:
        """The tokens of a stored turn that the ratio rule keeps, the one drawn after them, and the rest."""
        assert turn_draft.stored is not None
        assert turn_draft.rule is not None
        assert turn_draft.most is not None
        prompt, sampling = tuple(request.prompt_ids), request.sampling
        early = self._early.has(score_key(prompt, turn_draft.tokens, sampling, turn_draft.rule.top))
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
            whole, left = prompt + head.token_ids, turn_draft.most - len(head.token_ids)
            rest = replace(sampling, seed=derive_seed(sampling.seed, 4), max_tokens=left)
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

    def _begin_early(self, later: DraftedRequest) -> bool:
        """Begin what a later request does with its draft; ``False`` if it is begun already."""
        request, turn_draft = later
        if turn_draft.rule is None:
            asked = _redraw(request, turn_draft)
            return self._early.begin(turn_key(asked), lambda: self._generate(asked))
        scored = request.prompt_ids, turn_draft.tokens, request.sampling, turn_draft.rule.top
        return self._early.begin(score_key(*scored), lambda: self._score(*scored))

    async def _generate(self, request: TurnRequest) -> Completion:
        async with nullcontext() if self._slots is None else self._slots.needed():
            return await self.engine.generate(request)

    async def _score(self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, top: int) -> Scores:
        assert isinstance(self.engine, ScoringEngine)
        async with nullcontext() if self._slots is None else self._slots.needed():
            return await self.engine.score(tuple(prompt_ids), token_ids, sampling, top=top)


def _redraw(request: TurnRequest, turn_draft: TurnDraft) -> TurnRequest:
    """The request that draws a draft again, with its own noise."""
    sampling = replace(request.sampling, seed=turn_draft.seed)
    return replace(request, sampling=sampling, draft=turn_draft.tokens[: sampling.max_tokens])


def _of_used_noise(completion: Completion, level: Level) -> Completion:
    """A turn whose noise has been used before, also where its tokens differ from the draft: a store of drafts has seen
    the earlier ones."""
    return replace(completion, levels=str(level) * len(completion.token_ids), draft=completion.draft.untested())
