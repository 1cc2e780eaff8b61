"""HTTP connections to an engine's server, for clients that many event loops use."""

from __future__ import annotations

import random
import socket
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from turntree.agents.engines.event_thread import EventThread
from turntree.agents.errors import AgentError, EngineLost, MissingExtra

T = TypeVar("T")


class ServerError(AgentError, RuntimeError):
    """The server refused a request, or sent an answer that cannot be read."""


class ServerGone(ServerError, EngineLost):
    """The server does not answer."""


class ServerClient:
    """Requests to one server, all from one thread.

    ``kind`` ("a vLLM server"), ``command`` and ``extra`` are for messages: how to start such a server, and which extra
    installs httpx. ``seconds`` limits the time of an answer.

    Raises:
        MissingExtra: If httpx is not installed.
    """

    def __init__(
        self, base_url: str, *, kind: str, command: str, extra: str, seconds: float, transport: Any = None
    ) -> None:
        try:
            import httpx
        except ModuleNotFoundError as error:
            raise MissingExtra(kind, extra) from error
        self.base_url = base_url.rstrip("/")
        self._command = command
        self._http_error = httpx.HTTPError
        self._client = httpx.AsyncClient(
            base_url=self.base_url,
            timeout=httpx.Timeout(seconds, connect=10.0),
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )
        self._thread = EventThread(f"the client of {kind}")

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await ``work``, which sends requests, in a coroutine of any loop; cancelling the caller cancels ``work``."""
        return await self._thread.run(work)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(work)

    async def answer(self, method: str, path: str, body: Any = None) -> Any:
        """Return the ``httpx.Response``, whatever its status.

        Raises:
            ServerGone: If the server does not answer.
        """
        try:
            return await self._client.request(method, path, json=body)
        except self._http_error as error:
            raise ServerGone(
                f"no answer from {self.base_url} to {method} {path}: {error!r}; is {self._command} running there?"
            ) from error

    async def accepted(self, method: str, path: str, body: Any = None) -> Any:
        """Return the ``httpx.Response`` of a successful request.

        Raises:
            ServerError: If the server refuses.
            ServerGone: If the server does not answer.
        """
        reply = await self.answer(method, path, body)
        if reply.status_code != 200:
            raise ServerError(f"{method} {path} was answered {reply.status_code}: {reply.text[:500]}")
        return reply

    def close(self) -> None:
        if not self._thread.closed:
            self._thread.call(self._client.aclose())
            self._thread.close()


#: ports above those of Ray's workers (10,002 to 19,999) and below those of Linux's outgoing connections (from 32,768)
_RANGE = range(20_000, 32_000)


def free_port() -> int:
    """Return a port on which nothing listens and which the system gives to no outgoing connection.

    SGLang also uses the port 10,000 higher, which is a valid port, too.

    Raises:
        OSError: If none was found.
    """
    for port in random.SystemRandom().sample(_RANGE, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"none of 100 ports between {_RANGE.start} and {_RANGE.stop} was free")
