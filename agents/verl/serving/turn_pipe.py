"""Bulk transfer of turns from one process to one server actor.

A turn of a small policy takes milliseconds, and so does a Ray call; with
hundreds of concurrent episodes the calls would cost more than the model. All
turns requested in one iteration of the event loop are sent in one call, and one
waiting call returns all that have finished since the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import uuid4

from turntree.agents.engines.protocol import Completion, Engine, TurnRequest
from turntree.agents.errors import EngineFailed, EngineLost


class NumberedRequest(NamedTuple):
    """A turn that a client requests."""

    number: int
    """Number, unique for the client."""
    turn: TurnRequest
    """The request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReply:
    """The outcome of a request."""

    number: int
    completion: Completion | None = None
    """The turn; ``None`` if the engine raised."""
    error: str = ""
    """The engine's exception, in one line."""


class TurnPipe:
    """The client's end: an ``Engine`` over a server actor with the methods of ``TurnBatchServer``.

    Args:
        client: Name of this client, unique for the server.
    """

    def __init__(self, server: Any, client: str) -> None:
        self._server = server
        self._client = client
        self._waiting: dict[int, asyncio.Future[Completion]] = {}
        self._unsent: list[NumberedRequest] = []
        self._sent = 0
        self._collector: asyncio.Task[None] | None = None
        self._senders: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """Number of turns that have not come back."""
        return len(self._waiting)

    async def generate(self, request: TurnRequest) -> Completion:
        """Sample one turn.

        Raises:
            EngineFailed: If the engine refused or failed.
            EngineLost: If the server's process has ended, or was restarted since.
        """
        loop = asyncio.get_running_loop()
        self._sent += 1
        if not self._unsent:
            loop.call_soon(self._send)
        future: asyncio.Future[Completion] = loop.create_future()
        self._waiting[self._sent] = future
        self._unsent.append(NumberedRequest(self._sent, request))
        return await future

    async def begin_step(self, step: int) -> None:
        """Tell the server that training step ``step`` begins; returns once nothing is precomputed for it."""
        await self._server.begin_step.remote(step)

    def _send(self) -> None:
        requests, self._unsent = self._unsent, []
        sender = asyncio.create_task(self._submit(requests))
        self._senders.add(sender)
        sender.add_done_callback(self._senders.discard)

    async def _submit(self, requests: list[NumberedRequest]) -> None:
        try:
            life = await self._server.submit_turns.remote(self._client, requests)
        except Exception as error:
            self._lose([request.number for request in requests], error)
            return
        if self._collector is None or self._collector.done():
            self._collector = asyncio.create_task(self._collect(life))

    async def _collect(self, life: str) -> None:
        try:
            while self._waiting:
                for reply in await self._server.collect_turns.remote(self._client, life):
                    future = self._waiting.pop(reply.number, None)
                    if future is None or future.done():
                        continue
                    if reply.completion is None:
                        future.set_exception(EngineFailed(reply.error))
                    else:
                        future.set_result(reply.completion)
        except Exception as error:
            self._lose(list(self._waiting), error)

    def _lose(self, numbers: Sequence[int], error: Exception) -> None:
        """Fail the requests; the one boundary where the end of a server becomes an error of the episode."""
        for number in numbers:
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_exception(EngineLost(f"the rollout server is gone: {error}"))


class TurnBatchServer:
    """The server's side, over its engine. Lives in the server's event loop.

    Args:
        engine: Samples the turns, those for later steps too.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._life = uuid4().hex
        self._finished: dict[str, list[TurnReply]] = {}
        self._news: dict[str, asyncio.Event] = {}
        self._running: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> int:
        """Number of running turns, and of clients with finished turns that were not collected."""
        return len(self._running) + len(self._finished)

    @property
    def running(self) -> int:
        """Number of running turns."""
        return len(self._running)

    def submit(self, client: str, requests: Sequence[NumberedRequest]) -> str:
        """Start turns for ``client``; returns the id of this process, by which they are collected."""
        for request in requests:
            task = asyncio.create_task(self._run(client, request))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        return self._life

    async def collect(self, client: str, life: str) -> list[TurnReply]:
        """Wait until a turn of ``client`` has finished; returns all that have since the last call.

        Raises:
            EngineLost: If the process was restarted since the turns were requested: they will never finish.
        """
        if life != self._life:
            raise EngineLost("it was restarted")
        await self._event(client).wait()
        self._event(client).clear()
        return self._finished.pop(client, [])

    async def _run(self, client: str, request: NumberedRequest) -> None:
        try:
            completion = await self._engine.generate(request.turn)
            reply = TurnReply(number=request.number, completion=completion)
        except Exception as error:
            # The client's side of this boundary raises it again, inside the episode that requested the turn.
            reply = TurnReply(number=request.number, error=f"{type(error).__name__}: {error}")
        self._finished.setdefault(client, []).append(reply)
        self._event(client).set()

    def _event(self, client: str) -> asyncio.Event:
        return self._news.setdefault(client, asyncio.Event())
