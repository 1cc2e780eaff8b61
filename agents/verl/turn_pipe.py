"""Turns from one process to one server actor, many at a time.

A turn of a small policy takes milliseconds, and so does a Ray call; with
hundreds of episodes at once the calls would cost more than the model. All turns
that are asked for in one go of the event loop are sent in one call, and one
waiting call brings back everything that has finished since the last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from turntree.agents.engines.protocol import Completion, Engine, Sampling
from turntree.spec_tree import DialogueState


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A turn that a client asks for."""

    number: int
    """Number of the request, unique for the client."""
    prompt_ids: tuple[int, ...]
    """Token ids, shape (prompt,)."""
    sampling: Sampling
    """How to draw."""
    state: DialogueState | None
    """The dialogue state."""
    draft: tuple[int, ...] = ()
    """The caller's own guess of the turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReply:
    """What became of it."""

    number: int
    """Number of the request."""
    completion: Completion | None = None
    """The turn; ``None`` if the engine raised."""
    error: str = ""
    """What the engine raised, in one line."""


class TurnPipe:
    """The client's end: an ``Engine`` over a server actor with the methods of ``TurnDesk``.

    Args:
        server: The actor's handle.
        client: Name of this client, unique for the server.
    """

    def __init__(self, server: Any, client: str) -> None:
        self._server = server
        self._client = client
        self._waiting: dict[int, asyncio.Future[Completion]] = {}
        self._unsent: list[TurnRequest] = []
        self._sent = 0
        self._collector: asyncio.Task[None] | None = None

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        *,
        state: DialogueState | None = None,
        draft: Sequence[int] = (),
    ) -> Completion:
        """Sample one turn after ``prompt_ids`` (token ids, shape (prompt,)).

        Raises:
            RuntimeError: If the engine refused or failed.
        """
        loop = asyncio.get_running_loop()
        self._sent += 1
        if not self._unsent:
            loop.call_soon(self._send)
        self._unsent.append(
            TurnRequest(
                number=self._sent, prompt_ids=tuple(prompt_ids), sampling=sampling, state=state, draft=tuple(draft)
            )
        )
        future = self._waiting[self._sent] = loop.create_future()
        if self._collector is None or self._collector.done():
            self._collector = asyncio.create_task(self._collect())
        completion: Completion = await future
        return completion

    def _send(self) -> None:
        requests, self._unsent = self._unsent, []
        self._server.submit_turns.remote(self._client, requests)

    async def _collect(self) -> None:
        try:
            while self._waiting:
                for reply in await self._server.collect_turns.remote(self._client):
                    future = self._waiting.pop(reply.number, None)
                    if future is None or future.done():
                        continue
                    if reply.completion is None:
                        future.set_exception(RuntimeError(reply.error))
                    else:
                        future.set_result(reply.completion)
        except Exception as error:
            waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                if not future.done():
                    future.set_exception(RuntimeError(f"the rollout server is gone: {error}"))


class TurnDesk:
    """The server's end, over its engine. Lives in the server's event loop.

    Args:
        engine: What samples the turns.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._finished: dict[str, list[TurnReply]] = {}
        self._news: dict[str, asyncio.Event] = {}
        self._running: set[asyncio.Task[None]] = set()

    def submit(self, client: str, requests: Sequence[TurnRequest]) -> None:
        """Start turns for ``client``."""
        for request in requests:
            task = asyncio.create_task(self._run(client, request))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def collect(self, client: str) -> list[TurnReply]:
        """Wait until a turn of ``client`` has finished; all that have, since the last call."""
        await self._event(client).wait()
        self._event(client).clear()
        return self._finished.pop(client, [])

    async def _run(self, client: str, request: TurnRequest) -> None:
        try:
            completion = await self._engine.generate(
                request.prompt_ids, request.sampling, state=request.state, draft=request.draft
            )
            reply = TurnReply(number=request.number, completion=completion)
        except Exception as error:
            # The client's side of this boundary raises it again, inside the episode that asked.
            reply = TurnReply(number=request.number, error=f"{type(error).__name__}: {error}")
        self._finished.setdefault(client, []).append(reply)
        self._event(client).set()

    def _event(self, client: str) -> asyncio.Event:
        return self._news.setdefault(client, asyncio.Event())
