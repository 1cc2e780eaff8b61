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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

_AGAIN_SECONDS = 0.05
"""Time after which requests are aborted once more, as one may not have reached the engine the first time."""


class PrecomputingEngine(Protocol):
    """An engine that schedules ``TurnRequest.precomputed_for`` after all others."""

    async def abort_precomputed(self, most: int | None = None) -> None:
        """End at most so many precomputed requests with the tokens that they have, the newest first."""


class IdleSlots:
    """Which requests may run in an engine with priorities. Not thread-safe: it lives in one event loop.

    Args:
        engine: Its precomputed requests can be ended.
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

    @asynccontextmanager
    async def needed(self) -> AsyncIterator[None]:
        """A slot for what is needed now: at once, and precomputed turns end where one is missing."""
        self._wanted += 1
        if self._clearing is None and self._missing > 0:
            self._clearing = asyncio.create_task(self._clear())
        try:
            yield
        finally:
            self._wanted -= 1
            self._tell()

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[bool]:
        """A slot for a precomputed turn, once one is idle; ``False`` if all were ended while it waited."""
        ended = self._ended
        while self._wanted + len(self._ahead) >= self._batch or len(self._ahead) >= self._slots:
            await self._changed.wait()
            if self._ended != ended:
                yield False
                return
        turn = object()
        self._ahead.add(turn)
        try:
            yield True
        finally:
            self._ahead.discard(turn)
            self._tell()

    async def abort_precomputed(self) -> None:
        """End all precomputed turns with the tokens that they have; returns once they have ended."""
        self._ended += 1
        self._tell()
        had = set(self._ahead)
        while had & self._ahead:
            await self._engine.abort_precomputed()
            await self._change()

    async def _clear(self) -> None:
        """End precomputed turns until no slot is missing."""
        try:
            while self._ahead and self._missing > 0:
                await self._engine.abort_precomputed(self._missing)
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
