from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from turntree.agents.engines.protocol import Engine, TurnRequest
from turntree.agents.gateway.choices import Answer
from turntree.agents.gateway.http.event_stream import EventStream, stream_from
from turntree.agents.gateway.http.requests import cancel_if_gone, with_timeout
from turntree.agents.gateway.http.routes import Json
from turntree.agents.gateway.metrics import Metrics
from turntree.agents.gateway.turns import SampledTurn, SentPrompts, sample

Put = Callable[[dict[str, Any]], None]  #: sends one event to the client of a stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:  # one HTTP request, parsed and ready to be sampled
    answer: Answer
    requests: Sequence[TurnRequest]
    stream: bool
    #: called with the index and each finished turn
    on_turn: Callable[[int, SampledTurn], object] = lambda index, turn: None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:  # samples the turns of a request and sends the response
    engine: Engine
    metrics: Metrics
    seconds: float  #: time limit of a response
    sent: SentPrompts = field(default_factory=SentPrompts)  #: prompts of this gateway's clients, who share one key

    async def answer(self, http: Request, plan: Plan, held: ExitStack) -> Response:
        """Return the response.

        Args:
            held: Frees the request's slots and session when it is closed, which happens as soon as sampling has ended.

        Raises:
            ApiError: 400 or 503 as in ``turns.sample``; 408 after the time limit.
            ClientGone: If the client disconnected.
        """
        if plan.stream:
            return EventStream(
                self._events(plan, held),
                held,
                dict(plan.headers),
                gone=self.metrics.add_gone,
                dialect=plan.answer.dialect,
            )
        with held:
            turns = await cancel_if_gone(http.receive, with_timeout(self._sample(plan, None), self.seconds))
        return Json(plan.answer.body(turns), headers=dict(plan.headers))

    async def _events(self, plan: Plan, held: ExitStack) -> AsyncIterator[dict[str, Any]]:
        clock, first = asyncio.get_running_loop().time, True
        began = clock()

        async def work(put: Put) -> None:
            with held:
                turns = await with_timeout(self._sample(plan, put), self.seconds)
            for event in plan.answer.end(turns):
                put(event)

        for event in plan.answer.start():
            yield event
        async for event in stream_from(work):
            if first:
                self.metrics.first_token_seconds.add(clock() - began)
                first = False
            yield event

    async def _sample(self, plan: Plan, put: Put | None) -> list[SampledTurn]:
        if len(plan.requests) == 1:
            return [await self._sample_turn(plan, 0, put)]
        tasks = [asyncio.ensure_future(self._sample_turn(plan, index, put)) for index in range(len(plan.requests))]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _sample_turn(self, plan: Plan, index: int, put: Put | None) -> SampledTurn:
        def show() -> None:  # send the text that is new since the last call
            assert put is not None
            for event in plan.answer.update(index):
                put(event)

        turn = await sample(self.engine, plan.requests[index], plan.answer.text(index), None if put is None else show)
        self.metrics.add_turn(turn)
        plan.on_turn(index, turn)
        turn = self.sent.cached(turn)
        if put is not None:
            for event in plan.answer.last(index, turn):
                put(event)
        return turn
