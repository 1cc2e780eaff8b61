"""Responses as server-sent events."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from turntree.agents.gateway.http.errors import ApiError, ClientGone, internal_error
from turntree.agents.gateway.http.requests import cancel_if_gone

Events = AsyncIterator[dict[str, Any]]
#: some clients split events at these characters, as ``str.splitlines`` does
_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}


def data_line(event: Mapping[str, Any]) -> bytes:
    text = json.dumps(event, ensure_ascii=False).translate(_LINE_ENDS)
    return b"data: " + text.encode("utf-8", "backslashreplace") + b"\n\n"


def named_event(event: Mapping[str, Any]) -> bytes:
    return b"event: " + str(event["type"]).encode() + b"\n" + data_line(event)


class Dialect(NamedTuple):
    event: Callable[[Mapping[str, Any]], bytes]  #: encodes an event
    end: bytes  #: bytes after the last event
    refusal: Callable[[ApiError], dict[str, Any]]  #: body of a refusal, or the error event of a stream


OPENAI = Dialect(event=data_line, end=b"data: [DONE]\n\n", refusal=lambda error: error.body)


class EventStream(Response):
    """Send events as they arrive; an error after the first event is sent as an event.

    Args:
        events: JSON objects; closed when the client disconnects.
        held: Closed when the response ends, also after an error.
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
        # Starlette sets content-length for an empty body.
        del self.headers["content-length"]
        self._events, self._held, self._gone, self._dialect = events, held, gone, dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await cancel_if_gone(receive, self._send_all(send))
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
        except Exception:
            # The status has been sent already, so the error becomes an event.
            await self._refuse(send, internal_error("a stream"))
        finally:
            # Closing the generator stops the sampling.
            await self._events.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _refuse(self, send: Send, error: ApiError) -> None:
        await _send(send, self._dialect.event(self._dialect.refusal(error)))


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def stream_from(work: Callable[[Callable[[Any], None]], Any]) -> AsyncIterator[Any]:
    """Run ``work`` in its own task, and yield each value that it passes to its argument.

    Args:
        work: A coroutine function; its exception is raised at the end. Closing the iterator cancels the task.
    """
    pieces: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.ensure_future(work(pieces.put_nowait))
    # The sentinel wakes the reader after success, failure and cancellation alike.
    task.add_done_callback(lambda _: pieces.put_nowait(_END))
    try:
        while (piece := await pieces.get()) is not _END:
            yield piece
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


_END = object()
