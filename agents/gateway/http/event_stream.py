"""Answers by server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turntree.agents.gateway.http.errors import ApiError, ClientGone, broken
from turntree.agents.gateway.http.requests import unless_gone

Events = AsyncIterator[dict[str, Any]]
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""At these some clients end a line of an event, as ``str.splitlines`` does."""


def data_line(event: Mapping[str, Any]) -> bytes:
    """An event without a name."""
    text = json.dumps(event, ensure_ascii=False).translate(_LINE_ENDS)
    return b"data: " + text.encode("utf-8", "backslashreplace") + b"\n\n"


class Dialect(NamedTuple):
    """How an API writes streams and refusals."""

    event: Callable[[Mapping[str, Any]], bytes]
    """An event, as it is sent."""
    end: bytes
    """What follows the last one."""
    refusal: Callable[[ApiError], dict[str, Any]]
    """The body of a refusal, or the event of an error in a stream."""


OPENAI = Dialect(event=data_line, end=b"data: [DONE]\n\n", refusal=lambda error: error.body)
"""Events have no names; the last one is no JSON."""


class EventStream(Response):
    """Sends events as they come; an error after the first becomes an event, as the status is sent already.

    Args:
        events: JSON objects; closed when the client goes away.
        held: Closed at the end, whatever happened.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: Events,
        held: ExitStack,
        headers: Mapping[str, str],
        *,
        gone: Callable[[], None],
        dialect: Dialect = OPENAI,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **headers})
        del self.headers["content-length"]
        self._events, self._held, self._gone, self._dialect = events, held, gone, dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await unless_gone(receive, self._send_all(send))
        except ClientGone:
            self._gone()
        finally:
            self._held.close()

    async def _send_all(self, send: Send) -> None:
        try:
            async for event in self._events:
                await _send(send, self._dialect.event(event))
            if self._dialect.end:
                await _send(send, self._dialect.end)
        except ApiError as error:
            await self._refuse(send, error)
        except Exception:  # the boundary of a stream: the status is sent, so the error goes to the client as an event
            await self._refuse(send, broken("a stream"))
        finally:
            await self._events.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _refuse(self, send: Send, error: ApiError) -> None:
        await _send(send, self._dialect.event(self._dialect.refusal(error)))


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def as_they_come(work: Callable[[Callable[[Any], None]], Any]) -> AsyncIterator[Any]:
    """What ``work`` hands to its argument, while it runs in a task of its own; cancelled with the iterator.

    Args:
        work: A coroutine function; whatever it raises is raised here at the end.
    """
    pieces: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.ensure_future(work(pieces.put_nowait))
    task.add_done_callback(lambda _: pieces.put_nowait(_END))
    try:
        while (piece := await pieces.get()) is not _END:
            yield piece
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


_END = object()
