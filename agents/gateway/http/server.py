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
_MAX_FILES = 1 << 16  #: wanted limit on open files; each connection is one
_MAX_HEAD = 1 << 16  #: bytes, largest request head
_HEAD_SECONDS = 5.0  #: time limit of the first request's head


class _Patient(H11Protocol):
    """A connection that is closed if the client is silent, or reads nothing, for a time."""

    seconds: float  #: the first request's head has ``_HEAD_SECONDS`` at most
    most: int  #: connections at once
    _waits: asyncio.TimerHandle | None = None
    _blocked: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._blocked = None
        if len(self.connections) > self.most:
            transport.abort()
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_head()

    def is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._waits, self._blocked):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._blocked = self._blocked or self.loop.call_later(self.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._blocked is not None:
            self._blocked.cancel()
            self._blocked = None

    def _await_head(self) -> None:
        # Set a deadline for an incomplete head; between requests uvicorn's keep-alive timeout applies.
        busy = self.is_busy()
        if busy and self._waits is not None:
            self._waits.cancel()
            self._waits = None
        elif not busy and self._waits is None and self.timeout_keep_alive_task is None:
            first = min(self.seconds, _HEAD_SECONDS) if self.cycle is None else self.seconds
            self._waits = self.loop.call_later(first, self._give_up)

    def _give_up(self) -> None:
        self._waits = None
        if not self.is_busy():
            self.transport.abort()


class _Server(uvicorn.Server):
    interrupted = False
    hears_signals = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if not self.hears_signals:
            yield
            return
        loop = asyncio.get_running_loop()

        def end(number: signal.Signals) -> None:
            self.interrupted = number is signal.SIGINT
            self.force_exit = self.should_exit
            self.should_exit = True

        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, end, number)
        except (RuntimeError, ValueError):  # not the main thread: whoever started it ends it
            pass
        yield


def listen(settings: GatewaySettings) -> socket.socket:
    """Return a socket bound to the address of the settings.

    Raises:
        UsageError: If the address cannot be bound, or needs an API key.
    """
    try:
        at = socket.create_server(
            (settings.host, settings.port),
            family=socket.AF_INET6 if ":" in settings.host else socket.AF_INET,
            backlog=_BACKLOG,
        )
    except OSError as error:
        at_port = f"port {settings.port} of {settings.host}"
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"{at_port} is in use; name another --port, or 0 for a free one") from error
        why = (error.strerror or str(error)).partition(" (while ")[0]  # Python adds the address
        raise UsageError(f"cannot listen at {at_port}: {why}; name another --host or --port") from error
    if settings.api_key is None and not is_own(found := at.getsockname()[0]):  # whatever the name stands for here
        at.close()
        raise UsageError(f"--host {settings.host} is {found} here, {NEEDS_KEY}")
    return at


async def run(
    app: ASGIApp,
    settings: GatewaySettings,
    at: socket.socket,
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
    server.hears_signals = signals
    serving = asyncio.ensure_future(server.serve(sockets=[at]))
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
        if given_up := {*server.server_state.tasks}:  # cancelled by now: their places are free before the engine closes
            await asyncio.wait(given_up, timeout=settings.grace_seconds)
    return server.interrupted


def _raise_file_limit() -> int:
    try:
        import resource
    except ImportError:  # a system without such a limit
        return _MAX_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(_MAX_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _config(app: ASGIApp, settings: GatewaySettings, *, files: int) -> uvicorn.Config:
    most = min(_MAX_CONNECTIONS, max(files - _OWN_FILES, files // 2))
    return uvicorn.Config(
        app,
        http=type("Patient", (_Patient,), {"seconds": settings.read_seconds, "most": most}),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=min(_BACKLOG, (files - most) // 8),  # taken in each pass of the loop; closed a few passes later
        timeout_keep_alive=max(1, round(settings.read_seconds)),
        h11_max_incomplete_event_size=_MAX_HEAD,
        timeout_graceful_shutdown=max(1, round(settings.grace_seconds)),
    )
