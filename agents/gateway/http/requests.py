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
    # Constant time, so that response times reveal nothing about the key.
    if not hmac.compare_digest(given.encode(), key.encode()):
        got = "got a different key" if given else "got no key"
        raise ApiError(401, f"expected the header Authorization: Bearer KEY, {got}", code="invalid_api_key")


def check_sender(request: Request, settings: GatewaySettings) -> None:
    """Refuse requests that a browser sends for another site's page (DNS rebinding, foreign origin).

    Raises:
        ApiError: 403.
    """
    host_header = request.headers.get("host", "")
    try:
        host = urlsplit(f"//{host_header}").hostname or ""
    except ValueError:
        # The header has an unbalanced bracket.
        host = ""
    own_hosts = {
        "localhost",
        "127.0.0.1",
        "::1",
        settings.host.lower(),
        *(name.lower() for name in settings.allowed_hosts),
    }
    if "*" not in own_hosts and is_own(settings.host) and host not in own_hosts and not (host and is_own(host)):
        problem = f"unknown Host {host_header!r:.80}; to allow it, start the server with --allowed-hosts {host:.80}"
        raise ApiError(403, problem, code="host_not_allowed")
    origin = request.headers.get("origin")
    if origin is None or {"*", origin} & {*settings.allowed_origins}:
        return
    if origin.lower() not in (f"http://{host_header}".lower(), f"https://{host_header}".lower()):
        problem = f"pages of {origin!r:.80} are not allowed; to allow them, start the server with --allowed-origins"
        raise ApiError(403, f"{problem} {origin:.80}", code="origin_not_allowed")


def given_key(request: Request) -> str:
    """Return the key of a request, in OpenAI's or Anthropic's header; empty without a key."""
    kind, _, key = request.headers.get("authorization", "").partition(" ")
    return key.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "").strip()


async def read_body(request: Request, *, most: int, seconds: float) -> bytes:
    """Return the body of a request, limited in size and time.

    Raises:
        ApiError: 408 or 413.
        ClientGone: If the client disconnected.
    """
    too_large = ApiError(413, f"expected a body of at most {most:,} bytes; send less", code="body_too_large")
    declared = request.headers.get("content-length", "")
    # Refuse before reading; a chunked body is checked below.
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
        raise ClientGone("the client disconnected while sending its request") from None
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {seconds:g} s; send it again", code="timeout") from None


async def cancel_if_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work``, which is cancelled if the client disconnects."""
    task, gone = asyncio.current_task(), asyncio.ensure_future(_gone(receive))
    assert task is not None, "called in a task"

    def cancel_work(_: object) -> None:
        task.cancel()

    gone.add_done_callback(cancel_work)
    try:
        return await work
    except asyncio.CancelledError:
        # Other code cancelled the task; the client is still connected.
        if not gone.done() or task.uncancel():
            raise
        raise ClientGone("the client disconnected before the response") from None
    finally:
        gone.remove_done_callback(cancel_work)
        gone.cancel()


async def with_timeout(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Return the result of ``work``.

    Raises:
        ApiError: 408 after ``seconds``; the work is cancelled.
    """
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work
    except TimeoutError:
        # A timeout raised inside the work itself.
        if not limit.expired():
            raise
        raise ApiError(408, f"no answer within {seconds:g} s; request fewer tokens", code="timeout") from None


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
