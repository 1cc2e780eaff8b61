"""The process that forks workers: single-threaded, without foreign state, warm.

It is started as a fresh interpreter, imports the workers' modules, and forks one on request. Invariant: it
never runs a comparison itself; when its caller is gone (the control socket ends), it kills every worker and
exits; when it is killed itself, the kernel kills the workers.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import NamedTuple

from turntree.rewards.isolation.worker import serve_comparisons, warm_up

_PR_SET_PDEATHSIG = 1


class Fork(NamedTuple):
    """A request for a worker; its end of the socket pair follows as a file descriptor."""

    memory_bytes: int
    """Address space that it may use beyond its own at the start."""
    cpu_seconds: int
    """Processor time that one comparison may use."""


class Kill(NamedTuple):
    """A request to end a worker; the answer is the signal that ended it, 0 if it had exited by itself."""

    pid: int
    """Its process id, as the answer to ``Fork`` gave it."""


def serve(control_descriptor: int) -> None:
    """Fork and kill workers until the caller is gone."""
    caller = os.getppid()
    control = Connection(control_descriptor)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the caller decides when this ends
        signal.signal(number, signal.SIG_IGN)
    warm_up()
    gc.collect()
    gc.freeze()
    children: set[int] = set()
    ended: dict[int, int] = {}
    while os.getppid() == caller:  # a forked child of the caller may hold the socket open
        try:
            readable = control.poll(0.5)
            _reap(children, ended)
            if not readable:
                continue
            request = control.recv()
            if isinstance(request, Fork):
                descriptor = recv_handle(control)
                pid = _fork(request, descriptor, control)
                os.close(descriptor)
                children.add(pid)
                control.send(pid)
            else:
                control.send(_kill(request.pid, children, ended))
        except (EOFError, OSError):
            break
    for pid in tuple(children):
        _kill(pid, children, ended)


def _fork(request: Fork, descriptor: int, control: Connection) -> int:
    server = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        control.close()
        _die_with(server)
        serve_comparisons(Connection(descriptor), request.memory_bytes, request.cpu_seconds)
    finally:
        os._exit(0)


def _die_with(server: int) -> None:
    """Ask the kernel to end this worker when the server is gone."""
    with contextlib.suppress(OSError, AttributeError):  # not Linux: the end of the socket remains
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(0)


def _reap(children: set[int], ended: dict[int, int]) -> None:
    """Reap ended children, and keep their signals until the caller asks."""
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            children.clear()
            return
        if pid == 0:
            return
        children.discard(pid)
        ended[pid] = os.waitstatus_to_exitcode(status)


def _kill(pid: int, children: set[int], ended: dict[int, int]) -> int:
    """End a worker; returns the number of the signal that ended it, 0 if it had exited by itself."""
    _reap(children, ended)
    if pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            ended[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        children.discard(pid)
    return max(0, -ended.pop(pid, 0))
