"""The slots of an external engine, of which precomputed turns get those that nobody needs.

vLLM and SGLang schedule by priority: that decides who waits and who loses keys
and values. It does not bound how many precomputed turns run, and in vLLM it takes
no slot away. Both are done here.

Invariant: of ``batch`` slots a requested turn finds one, if not all are held by
requested turns: precomputed ones are admitted only to idle slots, at most
``slots`` of them, and end with their tokens when a slot is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, Scores, ScoringEngine, TurnRequest

_AGAIN_SECONDS = 0.05
"""Time after which requests are aborted once more, as one may not have reached the engine the first time."""


class PrecomputingEngine(ScoringEngine, Protocol):
    """An engine that schedules ``TurnRequest.ahead_for`` after all others."""

    async def abort_ahead(self, most: int | None = None) -> None:
        """End at most so many precomputed requests with the tokens that they have, the newest first."""
        ...


class IdleSlots:
    """An ``AheadEngine`` over an engine with priorities. Not thread-safe: it lives in one event loop.

    Args:
        engine: Samples the turns.
        batch: Requests that run at once in the engine.
        slots: Most of them that may be precomputed turns.
    """

    def __init__(self, engine: PrecomputingEngine, *, batch: int, slots: int) -> None:
        self._engine = engine
        self._batch = batch
        self._slots = slots
        self._wanted = 0
        self._ahead: set[object] = set()
        self._ended = 0
        self._changed = asyncio.Event()
        self._clearing: asyncio.Task[None] | None = None

    async def generate(self, request: TurnRequest) -> Completion:
        """The engine's turn; a precomputed one waits for an idle slot, and gives it up when it is needed."""
        if request.ahead_for:
            return await self._sample_ahead(request)
        async with self._needed_slot():
            return await self._engine.generate(request)

    async def score(
        self, prompt_ids: tuple[int, ...], token_ids: Sequence[int], sampling: Sampling, *, top: int = 0
    ) -> Scores:
        """The engine's own ``score``."""
        async with self._needed_slot():
            return await self._engine.score(prompt_ids, token_ids, sampling, top=top)

    async def abort_ahead(self) -> None:
        """End all precomputed turns with the tokens that they have; returns once they have ended."""
        self._ended += 1
        self._tell()
        had = set(self._ahead)
        while had & self._ahead:
            await self._engine.abort_ahead()
            await self._change()

    async def _sample_ahead(self, request: TurnRequest) -> Completion:
        ended = self._ended
        while self._wanted + len(self._ahead) >= self._batch or len(self._ahead) >= self._slots:
            await self._changed.wait()
            if self._ended != ended:
                return Completion(token_ids=(), logprobs=(), finish_reason=FinishReason.ABORT)
        turn = object()
        self._ahead.add(turn)
        try:
            return await self._engine.generate(request)
        finally:
            self._ahead.discard(turn)
            self._tell()

    @asynccontextmanager
    async def _needed_slot(self) -> AsyncIterator[None]:
        self._wanted += 1
        if self._clearing is None and self._missing > 0:
            self._clearing = asyncio.create_task(self._clear())
        try:
            yield
        finally:
            self._wanted -= 1
            self._tell()

    async def _clear(self) -> None:
        """End precomputed turns until no slot is missing."""
        try:
            while self._ahead and self._missing > 0:
                await self._engine.abort_ahead(self._missing)
                await self._change()
        finally:
            self._clearing = None

    @property
    def _missing(self) -> int:
        return self._wanted + len(self._ahead) - self._batch

    async def _change(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), _AGAIN_SECONDS)

    def _tell(self) -> None:
        """Wake all that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()
