"""A fork server: Ray's workers are forks of one process that has already imported verl's packages.

verl's imports take seconds of processor time in each of verl's eight processes. Ray starts a worker with the command
``runtime_env.py_executable``. turntree sets this command to ``fork_client``. The client sends its arguments,
environment, working folder, signal mask and standard streams to the server and waits until its fork has ended.

Invariant: a fork differs from a new interpreter only in its imported modules; ``become`` sets all inherited state.
This requires that no Python thread runs and no accelerator is initialised when the server forks, so only trainings on
the CPU use the server. Supported: Linux and other POSIX systems.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from turntree.agents.verl.run.fork_client import STREAMS, receive_message

_FORKED = signal.SIGCHLD
_PATIENCE = 10.0  #: seconds for a client to send its request


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The inputs of a new interpreter."""

    argv: list[str]  #: a script and its arguments
    env: dict[str, str]
    cwd: str
    blocked: list[int]  #: numbers of blocked signals
    group: int  #: process group


def listen(path: Path) -> socket.socket:
    """Bind the server's socket (a path of about 100 bytes at most); from now on clients can connect and wait."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)  # left by a server that has ended
    listener.bind(str(path))
    listener.listen(64)
    return listener


def serve(listener: socket.socket, parent: int) -> Request | None:
    """Fork for every client until the parent process closes its end of a pipe.

    Args:
        parent: File descriptor of the reading end of that pipe.

    Returns:
        In a fork, the request that it must ``become``; in the server, ``None`` at the end.
    """
    if threading.active_count() > 1:
        raise RuntimeError(f"threads are running, and a fork would lose them: {threading.enumerate()}")
    woken, wake = socket.socketpair()
    woken.setblocking(False)
    wake.setblocking(False)
    # Python writes to the wakeup descriptor only for signals with a handler.
    signal.signal(_FORKED, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    for number in (signal.SIGINT, signal.SIGTERM):  # these signals end the driver, which closes the pipe
        signal.signal(number, signal.SIG_IGN)
    clients: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        for source in (listener, woken, parent):
            selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj == parent:
                    return None
                if key.fileobj is listener:
                    client, _ = listener.accept()
                    pid, request = _fork(client)
                    if request is not None:
                        # In the fork: the inherited copies would keep other clients' connections open.
                        signal.set_wakeup_fd(-1)
                        for other in (listener, woken, wake, *clients.values()):
                            other.close()
                        os.close(parent)
                        return request
                    if pid is not None:
                        clients[pid] = client
                        selector.register(client, selectors.EVENT_READ, pid)
                elif key.fileobj is woken:
                    with contextlib.suppress(BlockingIOError):
                        woken.recv(4096)
                    for pid, status in _ended():
                        if pid in clients:
                            _leave(selector, clients.pop(pid), status)
                elif key.data in clients:  # the client was killed: kill its fork, too
                    os.kill(key.data, signal.SIGKILL)
                    selector.unregister(key.fileobj)


def _fork(client: socket.socket) -> tuple[int | None, Request | None]:
    client.settimeout(_PATIENCE)
    try:
        message, descriptors = receive_message(client)
        request = Request(**json.loads(message))
    except (OSError, ValueError, TypeError):
        client.close()  # the client then runs the script itself
        return None, None
    pid = os.fork()
    if pid == 0:
        client.close()
        for stream, descriptor in zip(STREAMS, descriptors, strict=True):
            os.dup2(descriptor, stream)
            os.close(descriptor)
        return None, request
    for descriptor in descriptors:
        os.close(descriptor)
    with contextlib.suppress(OSError):
        client.send(b"1")
    return pid, None


def _ended() -> list[tuple[int, int]]:
    ended = []
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append((found[0], os.waitstatus_to_exitcode(found[1])))
    return ended


def _leave(selector: selectors.BaseSelector, client: socket.socket, status: int) -> None:
    with contextlib.suppress(KeyError, ValueError):
        selector.unregister(client)
    with contextlib.suppress(OSError):
        client.send(str(status).encode())
    client.close()


def become(request: Request) -> None:
    """Set all state that a new process would inherit from the client, and run the script as the main module."""
    with contextlib.suppress(OSError):  # a group of another session cannot be joined
        os.setpgid(0, request.group)
    os.chdir(request.cwd)
    os.environ.clear()
    os.environ.update(request.env)
    for number in (signal.SIGINT, signal.SIGTERM, _FORKED):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
    if "numpy" in sys.modules:
        import numpy as np

        # Otherwise NumPy's generator would have the same state in all forks; Python reseeds its own at each fork.
        np.random.seed()
    sys.argv = list(request.argv)
    sys.path.insert(0, str(Path(request.argv[0]).parent))
    runpy.run_path(request.argv[0], run_name="__main__")
