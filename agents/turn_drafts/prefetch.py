"""Passes over stored turns that begin before the turns are requested.

An early pass is the one that the turn would need in its time: same prompt, tokens,
noise and limits. The request that would have begun it gets its result instead; without
such a request nobody sees it, but an engine that drafts has learnt from its tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import replace
from typing import Any

from turntree.agents.engines.protocol import Sampling, TurnRequest


class PrefetchedPasses:
    """Running passes by what they depend on; each result is handed out once."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}

    def begin(self, key: Hashable, work: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
        """Begin a pass; ``False`` if it is begun already."""
        if key in self._running:
            return False
        task = self._running[key] = asyncio.create_task(work())
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody may ask for it
        return True

    def has(self, key: Hashable) -> bool:
        """Whether a pass was begun whose result is not handed out yet."""
        return key in self._running

    async def result(self, key: Hashable) -> Any:
        """The result of a pass; ``None`` if none was begun, or if it failed, as its request may yet succeed."""
        task = self._running.pop(key, None)
        if task is None:
            return None
        try:
            return await task
        except Exception:
            return None

    def drop(self) -> list[asyncio.Task[Any]]:
        """Cancel the passes that no request waits for, and return them."""
        dropped = list(self._running.values())
        self._running = {}
        for task in dropped:
            task.cancel()
        return dropped


def turn_key(request: TurnRequest) -> Hashable:
    """What a turn depends on, of a policy."""
    return tuple(request.prompt_ids), request.sampling, tuple(request.draft)


def score_key(prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling, top: int) -> Hashable:
    """What scores depend on: of ``sampling`` the transforms alone."""
    transforms = replace(sampling, seed=None, max_tokens=1, stop_token_ids=(), top_logprobs=0)
    return tuple(prompt_ids), tuple(token_ids), transforms, top
