from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import replace
from typing import Any

from turntree.agents.engines.protocol import Sampling, TurnRequest


class PrefetchedPasses:
    """Passes over stored turns that start before the turns are requested; each result is handed out once.

    A prefetched pass is the one that its turn will need: same prompt, tokens, noise and limits. Without a request for
    the turn nobody sees the result, but an engine that drafts has learnt from its tokens.
    """

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}

    def begin(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
        """Start a pass; ``False`` if it was started before."""
        if key in self._running:
            return False
        task = self._running[key] = asyncio.create_task(work())
        # Read the exception of a pass that nobody asks for, or asyncio logs it as never retrieved.
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return True

    def has(self, key: Hashable) -> bool:
        return key in self._running

    async def result(self, key: Hashable) -> Any:
        """Return the result of a pass; ``None`` if none was started or it failed."""
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
    # Scores depend on the transforms alone.
    transforms = replace(sampling, seed=None, max_tokens=1, stop_token_ids=(), top_logprobs=0)
    return tuple(prompt_ids), tuple(token_ids), transforms, top
