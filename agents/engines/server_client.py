"""Connections to an engine's server over HTTP, for clients that are used from many event loops."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from turntree.agents.engines.event_thread import EventThread
from turntree.agents.errors import AgentError, EngineLost, MissingExtra

T = TypeVar("T")


class ServerError(AgentError, RuntimeError):
    """The server refused a request, or answered what cannot be read."""


class ServerGone(ServerError, EngineLost):
    """The server does not answer."""


class ServerClient:
    """Requests to one server, all from one thread.

    Args:
        base_url: Where the server listens.
        kind: Whose server it is, in the words of messages: ``a vLLM server``.
        command: What starts such a server, for messages.
        extra: Of turntree, which brings httpx.
        seconds: How long an answer may take.
        transport: An ``httpx`` transport, for tests.

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
        """Where the server listens."""
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
        """Await ``work``, which sends requests, from a coroutine of any loop; cancelling the caller cancels it."""
        return await self._thread.run(work)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for ``work``, which sends requests."""
        return self._thread.call(work)

    async def answer(self, method: str, path: str, body: Any = None) -> Any:
        """What the server answers, whatever its status: an ``httpx.Response``.

        Raises:
            ServerGone: If it does not.
        """
        try:
            return await self._client.request(method, path, json=body)
        except self._http_error as error:
            raise ServerGone(
                f"no answer from {self.base_url} to {method} {path}: {error!r}; is {self._command} running there?"
            ) from error

    async def accepted(self, method: str, path: str, body: Any = None) -> Any:
        """As ``answer``, of a request that the server takes.

        Raises:
            ServerError: If it refuses.
            ServerGone: If it does not answer.
        """
        reply = await self.answer(method, path, body)
        if reply.status_code != 200:
            raise ServerError(f"{method} {path} was answered {reply.status_code}: {reply.text[:500]}")
        return reply

    def close(self) -> None:
        """Close the connections. Closing twice is fine."""
        if not self._thread.closed:
            self._thread.call(self._client.aclose())
            self._thread.close()
