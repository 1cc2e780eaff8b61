"""The one engine around an engine: guesses of a turn's tokens first, then one generation, then its exactness.

The sources are asked in order. The first guess is verified by the engine: drawn again
with the noise that drew it, or kept by the ratio rule and continued. Every source
learns of every finished turn, and so do the monitors, the counters and the hub.

Invariant: a guess decides how many passes a turn takes, never what it is drawn from; the
letter of ``Completion.levels`` says what its tokens may claim.

Call ``close_step`` after every update of the policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace

from turntree.agents.engines.judged import shared
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
from turntree.agents.engines.splice import join, narrowed
from turntree.agents.guesses.early_passes import EarlyPasses, score_key, turn_key
from turntree.agents.guesses.idle_slots import IdleSlots
from turntree.agents.guesses.source import Drawn, Guess, Guessed, Source
from turntree.agents.guesses.turn_storage import within
from turntree.agents.guesses.turn_verification import verify
from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.level import Level

Remember = Callable[[DialogueState, Sequence[int]], None]
"""Takes a whole turn, such as a store of drafts or a hub does."""


class GuessedTurns:
    """An ``Engine`` whose turns begin with guesses; see the module's docstring.

    Args:
        engine: Generates, and scores where a guess is kept by the ratio rule.
        sources: Asked in this order.
        slots: The engine's slots, where precomputed turns may hold some of them.
        remember: Called with each turn that was continued, as the engine itself saw only the rest of it: a forest's
            ``insert``.
        note: Called with each finished turn of training.
        past: Whether the store of drafts has turns of other runs, whose noise may be that of this one: monitors then
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
        past: bool = False,
    ) -> None:
        self.engine = engine
        self.monitors = Monitors()
        self.counted = EngineStats()
        """Counters of the finished turns, precomputed ones left out."""
        self._sources = tuple(sources)
        self._slots = slots
        self._remember = remember
        self._note = note
        self._past = past
        self._early = EarlyPasses()

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn, for this step or for a later one.

        The request's own draft is used where no source has a guess.

        Raises:
            ValueError: If a source cannot work with these sampling parameters.
        """
        if request.ahead_for:
            return await self._sample_ahead(request)
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
            self.monitors.add([replace(completion, draft=completion.draft.untested()) if self._past else completion])
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

    async def _sample_ahead(self, request: TurnRequest) -> Completion:
        for source in self._sources:
            if (made := await source.sample_ahead(request)) is not None:
                return made
        return Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT)

    async def _drawn(self, request: TurnRequest) -> Drawn:
        guess = next((guess for source in self._sources if (guess := source.guess(request)) is not None), None)
        if guess is None:
            return await self._sampled(request)
        begun = 0
        if guess.later is not None:
            # The last prompt holds all others: an engine that computes it first has theirs in its cache.
            begun = sum(any(self._begin_early(one) for one in turns) for turns in reversed(guess.later))
            await asyncio.sleep(0)  # whether any began or not: siblings keep their order
        drawn = await (self._replayed if guess.rule is None else self._judged)(request, guess)
        return replace(drawn, begun=begun)

    async def _sampled(self, request: TurnRequest) -> Drawn:
        """A turn without a guess; its noise may have been used nevertheless."""
        seed = request.sampling.seed
        level = next((level for source in self._sources if (level := source.level(seed)) is not None), None)
        completion = await self._generate(request)
        if level is not None:
            completion = _of_used_noise(completion, level)
        return Drawn(request=request, guess=None, completion=completion, seed=seed)

    async def _replayed(self, request: TurnRequest, guess: Guess) -> Drawn:
        """The turn that the guess's noise draws."""
        asked = _redraw(request, guess)
        completion: Completion | None = await self._early.result(turn_key(asked))
        early = completion is not None and completion.finish_reason is not FinishReason.ABORT
        if completion is None or not early:
            completion = await self._generate(asked)
        return Drawn(
            request=request,
            guess=guess,
            completion=_of_used_noise(completion, guess.level),
            seed=guess.seed,
            kept=shared(guess.tokens, completion.token_ids),
            early=early,
        )

    async def _judged(self, request: TurnRequest, guess: Guess) -> Drawn:
        """The tokens of a stored turn that the ratio rule keeps, the one drawn after them, and the rest."""
        assert guess.stored is not None
        assert guess.rule is not None
        assert guess.most is not None
        prompt, sampling = tuple(request.prompt_ids), request.sampling
        early = self._early.has(score_key(prompt, guess.tokens, sampling, guess.rule.top))
        verified = await verify(self, prompt, guess.stored, guess.tokens, sampling, guess.rule, guess.level)
        head = verified.head
        if head.token_ids[-1] in sampling.stop_token_ids:
            done = replace(head, finish_reason=FinishReason.STOP)
        elif len(head.token_ids) == guess.most:
            done = replace(head, finish_reason=FinishReason.LENGTH)
        else:
            assert sampling.seed is not None
            whole, left = prompt + head.token_ids, guess.most - len(head.token_ids)
            rest = replace(sampling, seed=derive_seed(sampling.seed, 4), max_tokens=left)
            state = within(request.state, whole)
            done = join(head, await self._generate(TurnRequest(whole, rest, state=state)))
        aborted = done.finish_reason is FinishReason.ABORT
        if self._remember is not None and request.state is not None and not aborted:
            self._remember(request.state, done.token_ids)
        return Drawn(
            request=request,
            guess=guess,
            completion=done,
            seed=None,
            kept=verified.kept,
            wider=verified.wider,
            early=early,
        )

    def _begin_early(self, later: Guessed) -> bool:
        """Begin what a later request does with its guess; ``False`` if it is begun already."""
        request, guess = later
        if guess.rule is None:
            asked = _redraw(request, guess)
            return self._early.begin(turn_key(asked), lambda: self._generate(asked))
        scored = request.prompt_ids, guess.tokens, request.sampling, guess.rule.top
        return self._early.begin(score_key(*scored), lambda: self._score(*scored))

    async def _generate(self, request: TurnRequest) -> Completion:
        async with nullcontext() if self._slots is None else self._slots.needed():
            return await self.engine.generate(request)

    async def _score(self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, top: int) -> Scores:
        assert isinstance(self.engine, ScoringEngine)
        async with nullcontext() if self._slots is None else self._slots.needed():
            return await self.engine.score(tuple(prompt_ids), token_ids, sampling, top=top)


def _redraw(request: TurnRequest, guess: Guess) -> TurnRequest:
    """The request that draws a guess again, with its own noise."""
    sampling = replace(request.sampling, seed=guess.seed)
    return replace(request, sampling=sampling, draft=guess.tokens[: sampling.max_tokens])


def _of_used_noise(completion: Completion, level: Level) -> Completion:
    """A turn whose noise has been used before, also where its tokens differ from the guess: a store of drafts has seen
    the earlier ones."""
    return replace(completion, levels=str(level) * len(completion.token_ids), draft=completion.draft.untested())
