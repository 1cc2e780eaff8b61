"""The fork server: a single-threaded process, sympy loaded, that forks workers but runs no comparison.

If the caller is gone (the control socket ends), the server kills every worker and exits. If the server is killed,
the kernel kills its workers.
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
    """A request for a worker; the worker's end of a socket pair follows as a file descriptor."""

    memory_bytes: int  #: address space beyond what the worker uses at the start
    cpu_seconds: int  #: processor time of one comparison


class Kill(NamedTuple):
    """A request to end a worker; the answer is the signal that ended it, 0 for a plain exit."""

    pid: int


def serve(control_descriptor: int) -> None:
    caller = os.getppid()
    control = Connection(control_descriptor)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # only the caller ends this process
        signal.signal(number, signal.SIG_IGN)
    warm_up()
    # Frozen objects are not touched by later collections, so forks keep sharing their memory pages.
    gc.collect()
    gc.freeze()
    children: set[int] = set()
    ended: dict[int, int] = {}
    while os.getppid() == caller:  # check the parent, because a forked child of the caller may keep the socket open
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
        # Skip the handlers and buffers that the worker inherited from the server.
        os._exit(0)


def _die_with(server: int) -> None:
    # Ask the kernel to kill this worker when the server dies.
    with contextlib.suppress(OSError, AttributeError):  # not Linux: the worker exits when its socket ends
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(0)


def _reap(children: set[int], ended: dict[int, int]) -> None:
    # The signals are kept until the caller asks for them.
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
    _reap(children, ended)
    if pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            ended[pid] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        children.discard(pid)
    return max(0, -ended.pop(pid, 0))
