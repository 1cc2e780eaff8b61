"""An engine whose passes over stored turns may begin before the turns are requested.

An early pass is the one that the turn would need in its time: same prompt, tokens,
noise and limits. The request that would have begun it gets its result instead; without
such a request nobody sees it, but an engine that drafts has learnt from its tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, Scores, ScoringEngine, TurnRequest

_T = TypeVar("_T")


class EarlyPasses:
    """A ``ScoringEngine`` around another, which scores and samples; see the module's docstring."""

    def __init__(self, engine: ScoringEngine) -> None:
        self._engine = engine
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self.begun = 0
        """Passes begun early."""
        self.used = 0
        """Of these, those whose turn was requested."""

    def begin_turn(self, request: TurnRequest) -> bool:
        """Begin to sample a turn; ``False`` if that is begun already."""
        return self._begin(_turn_key(request), lambda: self._engine.generate(request))

    def begin_scores(self, prompt_ids: tuple[int, ...], token_ids: Sequence[int], sampling: Sampling, top: int) -> bool:
        """Begin to score tokens, arguments as for ``score``; ``False`` if that is begun already."""
        key = _score_key(prompt_ids, token_ids, sampling, top)
        return self._begin(key, lambda: self._engine.score(prompt_ids, token_ids, sampling, top=top))

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn."""
        turn: Completion | None = await self._early(_turn_key(request))
        if turn is None or turn.finish_reason is FinishReason.ABORT:
            return await self._engine.generate(request)
        self.used += 1
        return turn

    async def score(
        self, prompt_ids: tuple[int, ...], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        """As ``ScoringEngine.score``."""
        scores: Scores | None = await self._early(_score_key(prompt_ids, token_ids, sampling, top))
        if scores is None:
            return await self._engine.score(prompt_ids, token_ids, sampling, top=top)
        self.used += 1
        return scores

    def drop(self) -> list[asyncio.Task[Any]]:
        """Cancel the passes that no request waits for, and return them."""
        dropped = list(self._running.values())
        self._running = {}
        for task in dropped:
            task.cancel()
        return dropped

    def _begin(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
        if key in self._running:
            return False
        task = self._running[key] = asyncio.create_task(work())
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody may ask for it
        self.begun += 1
        return True

    async def _early(self, key: Hashable) -> Any:
        """The result of an early pass; ``None`` if there is none, or if it failed, as its request may yet succeed."""
        task = self._running.pop(key, None)
        return None if task is None else await _unless_it_fails(task)


async def _unless_it_fails(work: Awaitable[_T]) -> _T | None:
    try:
        return await work
    except Exception:
        return None


def _turn_key(request: TurnRequest) -> Hashable:
    return tuple(request.prompt_ids), request.sampling, tuple(request.draft)


def _score_key(prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, top: int) -> Hashable:
    """What scores depend on: of ``sampling`` the transforms alone."""
    transforms = replace(sampling, seed=None, max_tokens=1, stop_token_ids=(), top_logprobs=0)
    return tuple(prompt_ids), tuple(token_ids), transforms, top
