"""turntree's methods of vLLM's workers (``worker_extension_cls``), and their calls from where requests are taken.

One worker of each data-parallel engine drafts, the first tensor-parallel rank of the last pipeline stage, and it alone
has a store and counters. vLLM answers between two steps, so the counters of all turns that ended meanwhile are asked
for together: one call at a time, however many turns end.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turntree.agents.engines.protocol import DraftStats
from turntree.agents.engines.served.remote_store import carry_out
from turntree.agents.engines.vllm import compat

if TYPE_CHECKING:
    from turntree.agents.engines.vllm.drafter import ForestDrafter

Ask = Callable[..., Awaitable[list[Any]]]
"""Calls a method of every worker: its name, and a sequence of its arguments."""


class WorkerExtension:
    """Methods of a worker, called by name on every rank."""

    model_runner: Any
    vllm_config: Any

    def turntree_draft_stats(self, request_ids: Sequence[str]) -> dict[str, tuple[int, int, int]]:
        """Verify steps, drafted and accepted tokens by request; finished ones are then dropped here.

        Args:
            request_ids: The callers' ids. Those that the drafter does not know are left out.
        """
        drafter = self._drafter
        found = {} if drafter is None else {request_id: drafter.take_stats(request_id) for request_id in request_ids}
        return {request_id: counters for request_id, counters in found.items() if counters is not None}

    def turntree_drafter_stats(self) -> dict[str, float]:
        """Counters of turntree's drafter since the engine started; empty with another drafter or none, and on workers
        that do not draft."""
        drafter = self._drafter
        if drafter is None:
            return {}
        drafter.catch_up()
        return dict(drafter.stats())

    def turntree_draws_by_seed(self) -> bool:
        """Whether seeded requests draw by ``seeded_draws``."""
        from turntree.agents.engines.vllm.drawing.seeded_draws import installed

        return installed(self.model_runner)

    def turntree_store(self, method: str, *args: Any) -> None:
        """Call a method of the store of drafts, if there is one; see ``carry_out``."""
        if self._drafter is not None:
            self._drafter.catch_up()
            carry_out(self._drafter.forest, method, args, first_rank=compat.is_first_engine(self.vllm_config))

    @property
    def _drafter(self) -> ForestDrafter | None:
        """turntree's drafter, if this worker drafts with it."""
        drafter: Any = getattr(self.model_runner, "drafter", None)
        if not getattr(drafter, "leads", False):
            return None
        ours: ForestDrafter = drafter
        return ours


async def ask_workers(llm: Any, method: str, args: Sequence[Any] = ()) -> list[Any]:
    """What every worker of every data-parallel engine answers; vLLM itself drops what other engines than the first say.

    Args:
        llm: vLLM's ``AsyncLLM``.
        method: Name of a method of ``WorkerExtension``.
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
        """The drafter's counters of a request; zeros if it is not turntree's."""
        reply: asyncio.Future[DraftStats] = asyncio.get_running_loop().create_future()
        self._due[name] = reply
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_all())
        return await reply

    async def _ask_all(self) -> None:
        while self._due:
            due, self._due = self._due, {}
            try:
                answers = await self._ask("turntree_draft_stats", [list(due)])
            except Exception as error:
                _tell(due, lambda reply, _, error=error: reply.set_exception(error))
                continue
            found: dict[str, tuple[int, int, int]] = {}
            for answer in answers:
                found.update(answer)
            _tell(due, lambda reply, name, found=found: reply.set_result(_stats(found.get(name, (0, 0, 0)))))


def _tell(due: Mapping[str, asyncio.Future[DraftStats]], tell: Callable[..., None]) -> None:
    for name, reply in due.items():
        if not reply.done():  # its caller may have gone
            tell(reply, name)


def _stats(counters: tuple[int, int, int]) -> DraftStats:
    steps, drafted, accepted = counters
    return DraftStats(verify_steps=steps, drafted=drafted, accepted=accepted)
