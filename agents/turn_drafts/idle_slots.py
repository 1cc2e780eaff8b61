"""Admission of turns to the slots of an external engine (vLLM or SGLang).

A slot is the capacity to run one request. A precomputed turn is generated for a later training step, before its caller
asks for it. Every other turn is a requested turn.

A requested turn finds a slot unless requested turns hold all ``batch`` slots. Precomputed turns are admitted only to
idle slots, at most ``slots`` of them. They end with their tokens so far when a requested turn needs a slot.

The engine's priorities are not enough: they decide which request waits and whose keys and values are evicted. They do
not limit how many precomputed turns run, and in vLLM they take no slot from a running request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Protocol

#: Seconds until an abort is repeated: a request may reach the engine only after the first abort.
_RETRY_SECONDS = 0.05


class PrecomputingEngine(Protocol):
    """An engine that schedules requests with ``TurnRequest.precomputed_for`` after all other requests."""

    async def abort_precomputed(self, most: int | None = None) -> None:
        """End at most ``most`` precomputed requests with their tokens so far, the newest first."""


class IdleSlots:
    """Admission of requests to an engine with priorities. Not thread-safe: use it in one event loop.

    Of the ``batch`` requests that run at once, at most ``slots`` may be precomputed turns.
    """

    def __init__(self, engine: PrecomputingEngine, *, batch: int, slots: int) -> None:
        self._engine = engine
        self._batch = batch
        self._slots = slots  # most precomputed turns at once
        self._requested = 0  # requested turns that hold or need a slot
        self._precomputed: set[object] = set()  # one object per precomputed turn that holds a slot
        self._ended = 0  # number of abort_precomputed calls: a waiting turn gives up when it changes
        self._changed = asyncio.Event()
        self._freeing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def needed(self) -> AsyncIterator[None]:
        """Take a slot for a requested turn at once; end precomputed turns if no slot is free."""
        self._requested += 1
        if self._freeing is None and self._missing > 0:
            self._freeing = asyncio.create_task(self._free_slots())
        try:
            yield
        finally:
            self._requested -= 1
            self._wake_waiting()

    @asynccontextmanager
    async def idle(self) -> AsyncIterator[bool]:
        """Wait for an idle slot for a precomputed turn; yield ``False`` after an ``abort_precomputed``."""
        ended = self._ended
        while self._requested + len(self._precomputed) >= self._batch or len(self._precomputed) >= self._slots:
            await self._changed.wait()
            if self._ended != ended:
                yield False
                return
        turn = object()
        self._precomputed.add(turn)
        try:
            yield True
        finally:
            self._precomputed.discard(turn)
            self._wake_waiting()

    async def abort_precomputed(self) -> None:
        """End all precomputed turns with their tokens so far; return once they have ended."""
        self._ended += 1
        self._wake_waiting()
        running = set(self._precomputed)
        while running & self._precomputed:  # repeated: an abort may reach the engine before its request
            await self._engine.abort_precomputed()
            await self._wait_for_change()

    async def _free_slots(self) -> None:
        try:
            while self._precomputed and self._missing > 0:
                await self._engine.abort_precomputed(self._missing)
                await self._wait_for_change()
        finally:
            self._freeing = None

    @property
    def _missing(self) -> int:
        # Slots that requested turns lack; precomputed turns must end to free them.
        return self._requested + len(self._precomputed) - self._batch

    async def _wait_for_change(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), _RETRY_SECONDS)

    def _wake_waiting(self) -> None:
        # Whoever waits holds the old event; a new event keeps later callers waiting.
        self._changed.set()
        self._changed = asyncio.Event()
