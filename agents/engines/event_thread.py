"""An event loop on its own thread, for an asynchronous client that many event loops share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_GRACE = 5.0  #: seconds that cancelled work may take to end


class EventThread:
    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work`` from a coroutine of any loop; cancelling the caller cancels ``work``.

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
        """Start ``work`` without waiting for it.

        Raises:
            RuntimeError: If the thread is closed.
        """
        self._refuse_if_closed(work)
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel running work, so that its callers wake up, and stop the thread. May be called twice."""
        if not self.closed:
            self.call(_cancel_others())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _refuse_if_closed(self, work: Coroutine[Any, Any, T]) -> None:
        if self.closed:
            work.close()
            raise RuntimeError(f"{self._name} is closed; create a new one")


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_GRACE)
