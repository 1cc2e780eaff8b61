"""An event loop on its own thread, for an asynchronous client that belongs to one loop and is used from many."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_GRACE = 5.0
"""Seconds in which cancelled work ends, or is given up."""


class EventThread:
    """Runs coroutines on its own thread until it is closed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether the thread takes no more work."""
        return self._loop.is_closed()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` from a coroutine of any loop; cancelling the caller cancels it.

        Raises:
            RuntimeError: If the thread is closed.
        """
        self._refuse_if_closed(work)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def call(self, work: Coroutine[Any, Any, T], *, seconds: float | None = None) -> T:
        """Run ``work`` and wait for its result.

        Raises:
            RuntimeError: If the thread is closed.
            TimeoutError: After ``seconds``.
        """
        self._refuse_if_closed(work)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run ``work`` and wait for nothing.

        Raises:
            RuntimeError: If the thread is closed.
        """
        self._refuse_if_closed(work)
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel what still runs, so that nobody waits for it for ever, and stop the thread. Closing twice is fine."""
        if not self.closed:
            self.call(_cancel_others())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _refuse_if_closed(self, work: Coroutine[Any, Any, T]) -> None:
        if self.closed:
            work.close()
            raise RuntimeError(f"{self._name} is closed; make a new one")


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_GRACE)
