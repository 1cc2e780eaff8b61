"""One HTTP server for all episodes of an event loop; a request's API key selects the episode's gateway.

The server listens on 127.0.0.1 while any episode runs. It installs no signal handlers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from turntree.agents.gateway.app import Gateway, make_app
from turntree.agents.gateway.http.errors import ApiError
from turntree.agents.gateway.http.requests import given_key
from turntree.agents.gateway.http.routes import Json
from turntree.agents.gateway.http.server import listen, run
from turntree.agents.gateway.http.settings import GatewaySettings

#: settings of the HTTP server; the context length and other limits come from each episode's own gateway
_SERVER_SETTINGS = GatewaySettings(model="policy", max_context=1, port=0, grace_seconds=1.0)


class Front:
    """The HTTP server shared by all episodes of one event loop; create it while that loop runs."""

    def __init__(self) -> None:
        self._apps: dict[str, ASGIApp] = {}  # API key -> handlers of that episode's gateway
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._serving: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (app := self._apps.get(given_key(Request(scope)))) is None:
            error = ApiError(401, "this API key belongs to no running episode", code="invalid_api_key")
            app = Json(error.body, status_code=error.status, headers=error.headers)
        await app(scope, receive, send)

    async def enter(self, key: str, gateway: Gateway) -> str:
        """Register a gateway and return its base URL."""
        self._apps[key] = make_app(gateway)
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve())
            self._serving.add_done_callback(self._pass_error)
        # All episodes await the same future, so cancelling one episode must not cancel the future.
        return await asyncio.shield(self._url)

    def leave(self, key: str) -> bool:
        """Remove a gateway and return whether it was the last one; after the last one, the server stops."""
        del self._apps[key]
        return not self._apps

    async def ended(self) -> None:
        if self._serving is not None:
            await asyncio.shield(self._serving)

    async def _serve(self) -> None:
        with listen(_SERVER_SETTINGS) as socket:
            url = f"http://127.0.0.1:{socket.getsockname()[1]}/v1"
            await run(
                self,
                _SERVER_SETTINGS,
                socket,
                closing=lambda: None,
                ready=lambda: self._url.set_result(url),
                until=lambda: not self._apps,
                signals=False,
            )

    def _pass_error(self, serving: asyncio.Task[None]) -> None:
        # If the server could not start, raise its error in the episodes that wait for the URL.
        if not self._url.done():
            error = None if serving.cancelled() else serving.exception()
            self._url.set_exception(error or RuntimeError("the server of the episodes did not start"))


_fronts: WeakKeyDictionary[asyncio.AbstractEventLoop, Front] = WeakKeyDictionary()


@asynccontextmanager
async def admitted(gateway: Gateway) -> AsyncIterator[str]:
    """Yield the base URL at which ``gateway`` answers requests with its API key.

    Args:
        gateway: A gateway with a unique API key.
    """
    key = gateway.settings.api_key
    assert key is not None
    loop = asyncio.get_running_loop()
    front = _fronts.get(loop)
    if front is None:
        front = _fronts[loop] = Front()
    try:
        yield await front.enter(key, gateway)
    finally:
        if front.leave(key):
            _fronts.pop(loop, None)
            await front.ended()
