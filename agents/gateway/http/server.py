from __future__ import annotations

import asyncio
import errno
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from turntree.agents.errors import UsageError
from turntree.agents.gateway.http.settings import NEEDS_KEY, GatewaySettings, is_own

_MAX_CONNECTIONS = 8192  #: further connections are closed at once; the limit on open files may lower this
_OWN_FILES = 512  #: descriptors reserved for the process itself; half of them if the limit is small
_BACKLOG = 2048
_MAX_FILES = 1 << 16  #: target limit on open files; each connection is an open file
_MAX_HEAD = 1 << 16  #: bytes, largest request head
_HEAD_SECONDS = 5.0  #: time limit of the first request's head


class _TimedProtocol(H11Protocol):
    """A connection that closes if the client sends nothing, or reads nothing, for too long."""

    seconds: float  #: time limit; at most ``_HEAD_SECONDS`` apply to the first request's head
    max_connections: int  #: connections at once
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._write_timer = None
        # uvicorn's own limit answers 503, which costs time; closing is cheaper.
        if len(self.connections) > self.max_connections:
            transport.abort()
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_head()

    def is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._head_timer, self._write_timer):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        # uvicorn never gives up on a client that reads nothing.
        self._write_timer = self._write_timer or self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _await_head(self) -> None:
        # Set a deadline for an incomplete head; between requests uvicorn's keep-alive timeout applies.
        busy = self.is_busy()
        if busy and self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        elif not busy and self._head_timer is None and self.timeout_keep_alive_task is None:
            first = min(self.seconds, _HEAD_SECONDS) if self.cycle is None else self.seconds
            self._head_timer = self.loop.call_later(first, self._give_up)

    def _give_up(self) -> None:
        self._head_timer = None
        if not self.is_busy():
            self.transport.abort()


class _Server(uvicorn.Server):
    interrupted = False
    handles_signals = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if not self.handles_signals:
            yield
            return
        loop = asyncio.get_running_loop()

        def end(number: signal.Signals) -> None:
            self.interrupted = number is signal.SIGINT
            # A second signal stops running responses, too.
            self.force_exit = self.should_exit
            self.should_exit = True

        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, end, number)
        except (RuntimeError, ValueError):
            # Not in the main thread: whoever started the server also stops it.
            pass
        yield


def listen(settings: GatewaySettings) -> socket.socket:
    try:
        listener = socket.create_server(
            (settings.host, settings.port),
            family=socket.AF_INET6 if ":" in settings.host else socket.AF_INET,
            backlog=_BACKLOG,
        )
    except OSError as error:
        at_port = f"port {settings.port} of {settings.host}"
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"{at_port} is in use; name another --port, or 0 for a free port") from error
        # Python appends the address to the message.
        why = (error.strerror or str(error)).partition(" (while ")[0]
        raise UsageError(f"cannot listen at {at_port}: {why}; name another --host or --port") from error
    # A host name may resolve to an address that other machines can reach.
    if settings.api_key is None and not is_own(address := listener.getsockname()[0]):
        listener.close()
        raise UsageError(f"--host {settings.host} resolves to {address}, which {NEEDS_KEY}")
    return listener


async def run(
    app: ASGIApp,
    settings: GatewaySettings,
    listener: socket.socket,
    *,
    closing: Callable[[], None],
    ready: Callable[[], None],
    until: Callable[[], bool] = lambda: False,
    signals: bool = True,
) -> bool:
    """Serve until SIGTERM, SIGINT or ``until``; running responses have ``grace_seconds`` to finish.

    Args:
        closing: Called when the shutdown starts.
        ready: Called when the server accepts requests.
        until: Polled; the server stops once it returns true.
        signals: Whether the server handles SIGTERM and SIGINT itself.

    Returns:
        Whether SIGINT stopped the server.
    """
    server = _Server(_config(app, settings, files=_raise_file_limit()))
    server.handles_signals = signals
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        ready()
        while not server.should_exit and not serving.done() and not until():
            await asyncio.sleep(0.05)
        server.should_exit = True
        closing()
        await serving
    finally:
        server.should_exit = True
        await serving
        # These tasks are cancelled; wait until they have freed their slots, before the engine closes.
        if given_up := {*server.server_state.tasks}:
            await asyncio.wait(given_up, timeout=settings.grace_seconds)
    return server.interrupted


def _raise_file_limit() -> int:
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return _MAX_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _MAX_FILES if hard == resource.RLIM_INFINITY else min(_MAX_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return target
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _config(app: ASGIApp, settings: GatewaySettings, *, files: int) -> uvicorn.Config:
    max_connections = min(_MAX_CONNECTIONS, max(files - _OWN_FILES, files // 2))
    return uvicorn.Config(
        app,
        http=type("Patient", (_TimedProtocol,), {"seconds": settings.read_seconds, "max_connections": max_connections}),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        # asyncio accepts the whole backlog in one pass, before excess connections are closed.
        backlog=min(_BACKLOG, (files - max_connections) // 8),
        timeout_keep_alive=max(1, round(settings.read_seconds)),
        h11_max_incomplete_event_size=_MAX_HEAD,
        timeout_graceful_shutdown=max(1, round(settings.grace_seconds)),
    )
