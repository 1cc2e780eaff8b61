"""Counters of turntree's drafter, asked of vLLM's workers.

One worker of each data-parallel engine drafts, the first tensor-parallel rank of the last pipeline stage, and it alone
has counters. vLLM answers between two steps, so the counters of all turns that ended meanwhile are asked for together:
one call at a time, however many turns end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from turntree.agents.engines.protocol import DraftStats

Ask = Callable[..., Awaitable[list[Any]]]
"""Calls a method of every worker: its name, and a sequence of its arguments."""


async def ask_workers(llm: Any, method: str, args: Sequence[Any] = ()) -> list[Any]:
    """What every worker of every data-parallel engine answers; vLLM itself drops what other engines than the first say.

    Args:
        llm: vLLM's ``AsyncLLM``.
        method: Name of a method of ``WorkerExtension``.
        args: Its arguments.
    """
    client = llm.engine_core
    engines = getattr(client, "core_engines", ())
    if len(engines) < 2:
        answers: list[Any] = await llm.collective_rpc(method, args=tuple(args))
        return answers
    asked = [client._call_utility_async("collective_rpc", method, None, tuple(args), None, engine=e) for e in engines]
    return [answer for engine in await asyncio.gather(*asked) for answer in engine]


def summed(answers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Counters of all drafters together."""
    total: Counter[str] = Counter()
    for counters in answers:
        total.update(counters)
    return dict(total)


class TurnCounters:
    """Counters of turns that have ended, for callers of one event loop."""

    def __init__(self, ask: Ask) -> None:
        """Ask with ``ask``."""
        self._ask = ask
        self._due: dict[str, asyncio.Future[DraftStats]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def of(self, name: str) -> DraftStats:
        """The drafter's counters of a request; zeros if it is not turntree's.

        Args:
            name: The request's id.
        """
        told = self._due[name] = asyncio.get_running_loop().create_future()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_all())
        return await told

    async def _ask_all(self) -> None:
        while self._due:
            due, self._due = self._due, {}
            try:
                answers = await self._ask("turntree_draft_stats", [list(due)])
            except Exception as error:
                _tell(due, lambda told, _, error=error: told.set_exception(error))
                continue
            found: dict[str, tuple[int, int, int]] = {}
            for answer in answers:
                found.update(answer)
            _tell(due, lambda told, name, found=found: told.set_result(_stats(found.get(name, (0, 0, 0)))))


def _tell(due: Mapping[str, asyncio.Future[DraftStats]], tell: Callable[..., None]) -> None:
    for name, told in due.items():
        if not told.done():  # its caller may have gone
            tell(told, name)


def _stats(counters: tuple[int, int, int]) -> DraftStats:
    steps, drafted, accepted = counters
    return DraftStats(verify_steps=steps, drafted=drafted, accepted=accepted)
