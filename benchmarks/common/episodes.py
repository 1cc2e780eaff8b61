from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from turntree.agents.episodes.episode import Episode


def play_all(
    envs: Sequence[Any], jobs: Iterable[tuple[int, int]], play: Callable[[Any, int, int], Awaitable[Episode]]
) -> list[Episode]:
    """Play each job, a task and sample, in a free environment; return the episodes in order."""

    async def every() -> list[Episode]:
        free = asyncio.Queue[Any]()
        for env in envs:
            free.put_nowait(env)

        async def one(task: int, sample: int) -> Episode:
            env = await free.get()
            try:
                return await play(env, task, sample)
            finally:
                free.put_nowait(env)

        return await asyncio.gather(*(one(*job) for job in jobs))

    return asyncio.run(every())
