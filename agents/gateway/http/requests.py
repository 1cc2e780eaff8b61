from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect, Request

from turntree.agents.gateway.http.errors import ApiError, ClientGone
from turntree.agents.gateway.http.settings import GatewaySettings, is_own

T = TypeVar("T")
Receive = Callable[[], Awaitable[Any]]


def check_key(request: Request, key: str | None) -> None:
    """Check the API key.

    Raises:
        ApiError: 401.
    """
    if key is None:
        return
    given = given_key(request)
    if not hmac.compare_digest(given.encode(), key.encode()):
        came = "another one came" if given else "none came"
        raise ApiError(401, f"expected the header Authorization: Bearer KEY, {came}", code="invalid_api_key")


def check_sender(request: Request, settings: GatewaySettings) -> None:
    """Refuse requests that a browser sends for somebody else's page (DNS rebinding, foreign origin).

    Raises:
        ApiError: 403.
    """
    given = request.headers.get("host", "")
    try:
        host = urlsplit(f"//{given}").hostname or ""
    except ValueError:  # half of a bracket
        host = ""
    own = {"localhost", "127.0.0.1", "::1", settings.host.lower(), *(name.lower() for name in settings.allowed_hosts)}
    if "*" not in own and is_own(settings.host) and host not in own and not (host and is_own(host)):
        problem = f"the Host {given!r:.80} is not this server's; if it is, begin it with --allowed-hosts {host:.80}"
        raise ApiError(403, problem, code="host_not_allowed")
    origin = request.headers.get("origin")
    if origin is None or {"*", origin} & {*settings.allowed_origins}:
        return
    if origin.lower() not in (f"http://{given}".lower(), f"https://{given}".lower()):
        problem = f"pages of {origin!r:.80} may not ask here; if they may, begin the server with --allowed-origins"
        raise ApiError(403, f"{problem} {origin:.80}", code="origin_not_allowed")


def given_key(request: Request) -> str:
    """Return the key of a request, in OpenAI's or Anthropic's header; empty if there is none."""
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "").strip()


async def read_body(request: Request, *, most: int, seconds: float) -> bytes:
    """Return the body of a request, limited in size and time.

    Raises:
        ApiError: 408 or 413.
        ClientGone: If the client disconnected.
    """
    too_large = ApiError(413, f"the body may have {most:,} bytes at most; send less", code="body_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise too_large
            return bytes(body)
    except ClientDisconnect:
        raise ClientGone("the client went away while it sent its request") from None
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive in {seconds:g} s; send it again", code="timeout") from None


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``, which is cancelled if the client disconnects.

    Raises:
        ClientGone: If the client disconnected.
    """
    task, gone = asyncio.current_task(), asyncio.ensure_future(_gone(receive))
    assert task is not None, "called in a task"

    def leave(_: object) -> None:
        task.cancel()

    gone.add_done_callback(leave)
    try:
        return await work
    except asyncio.CancelledError:
        if not gone.done() or task.uncancel():  # somebody else gave the answer up
            raise
        raise ClientGone("the client went away before its answer") from None
    finally:
        gone.remove_done_callback(leave)
        gone.cancel()


async def in_time(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return the result of ``work``.

    Raises:
        ApiError: 408 after ``seconds``; the work is cancelled.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise ApiError(408, f"there was no answer in {seconds:g} s; ask for fewer tokens", code="timeout") from None


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
