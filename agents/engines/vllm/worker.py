"""turntree's methods on vLLM's workers (``worker_extension_cls``), and the calls to them.

In each data-parallel engine, one worker drafts: the first tensor-parallel rank of the last pipeline stage. Only that
worker has a draft store and counters. vLLM answers calls only between steps, so ``TurnCounters`` makes one call for all
turns that ended since its last call.
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

Ask = Callable[..., Awaitable[list[Any]]]  #: Calls a method of every worker, by name and arguments.


class WorkerExtension:
    """Methods of a worker, called by name on every rank."""

    model_runner: Any
    vllm_config: Any

    def turntree_draft_stats(self, request_ids: Sequence[str]) -> dict[str, tuple[int, int, int]]:
        """Return verify steps, drafted and accepted tokens by request; forget finished requests.

        Args:
            request_ids: The callers' ids. Ids that the drafter does not know are left out of the result.
        """
        drafter = self._drafter
        if drafter is None:
            return {}
        counters = {request_id: drafter.take_stats(request_id) for request_id in request_ids}
        return {request_id: counts for request_id, counts in counters.items() if counts is not None}

    def turntree_drafter_stats(self) -> dict[str, float]:
        """Return the drafter's counters since the engine started.

        Empty on workers that do not draft with turntree.
        """
        drafter = self._drafter
        if drafter is None:
            return {}
        drafter.catch_up()
        return dict(drafter.stats())

    def turntree_draws_by_seed(self) -> bool:  # whether this worker samples with turntree's seeds
        from turntree.agents.engines.vllm.drawing.seeded_draws import installed

        return installed(self.model_runner)

    def turntree_store(self, method: str, *args: Any) -> None:
        """Call ``method`` of the draft store (see ``carry_out``), if this worker has a draft store."""
        if self._drafter is not None:
            self._drafter.catch_up()
            carry_out(self._drafter.forest, method, args, first_rank=compat.is_first_engine(self.vllm_config))

    @property
    def _drafter(self) -> ForestDrafter | None:
        drafter: Any = getattr(self.model_runner, "drafter", None)
        if not getattr(drafter, "leads", False):
            return None
        forest_drafter: ForestDrafter = drafter
        return forest_drafter


async def ask_workers(llm: Any, method: str, args: Sequence[Any] = ()) -> list[Any]:
    """Return the answers of every worker of every data-parallel engine.

    vLLM's ``collective_rpc`` drops the answers of all engines but the first.
    """
    client = llm.engine_core
    engines = getattr(client, "core_engines", ())
    if len(engines) < 2:
        answers: list[Any] = await llm.collective_rpc(method, args=tuple(args))
        return answers
    asked = [client._call_utility_async("collective_rpc", method, None, tuple(args), None, engine=e) for e in engines]
    return [answer for engine in await asyncio.gather(*asked) for answer in engine]


def summed(answers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for counters in answers:
        total.update(counters)
    return dict(total)


class TurnCounters:
    """Draft counters of finished turns, for callers on one event loop."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: dict[str, asyncio.Future[DraftStats]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def of(self, name: str) -> DraftStats:
        """Return the draft counters of the request with id ``name``; zeros if turntree does not draft."""
        reply: asyncio.Future[DraftStats] = asyncio.get_running_loop().create_future()
        self._waiting[name] = reply
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_all())
        return await reply

    async def _ask_all(self) -> None:
        # Turns that end during a call share the next call.
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            try:
                answers = await self._ask("turntree_draft_stats", [list(waiting)])
            except Exception as error:
                for reply in waiting.values():
                    if not reply.done():
                        reply.set_exception(error)
                continue
            counters: dict[str, tuple[int, int, int]] = {}
            for answer in answers:
                counters.update(answer)
            for name, reply in waiting.items():
                if not reply.done():  # done: its caller was cancelled
                    steps, drafted, accepted = counters.get(name, (0, 0, 0))
                    reply.set_result(DraftStats(verify_steps=steps, drafted=drafted, accepted=accepted))
