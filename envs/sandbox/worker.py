"""Starts the process that runs the code, in its confinement. Loaded inside the sandbox.

Without namespaces, the supervisor starts the worker, which runs the code. With namespaces there are two processes
between them: one that leaves the old namespaces, and the first process inside the new ones. Each dies with its parent.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import site
import sys
from typing import Any, NamedTuple, NoReturn

from turntree.envs.sandbox import cells, confinement, frames, kernel
from turntree.envs.sandbox.processes import descendants


class Worker(NamedTuple):
    """A running worker, as seen from the supervisor."""

    pid: int  #: first process of the chain
    requests: int  #: descriptor to write code to
    results: int  #: descriptor to read results from
    stdout: int  #: descriptor to read the code's output from
    stderr: int  #: descriptor to read the code's error stream from
    last: int = 0  #: last process of the chain, which runs the code; 0 until the worker is confined

    def seen(self) -> Worker:
        """Return a copy with ``last``, once the worker is confined; make the descriptors non-blocking."""
        for descriptor in (self.requests, self.results):
            os.set_blocking(descriptor, False)
        return self._replace(last=[self.pid, *descendants(self.pid)][-1])

    def close(self) -> None:
        for descriptor in self[1:5]:
            os.close(descriptor)


def start(config: dict[str, Any], *, namespaces: bool) -> Worker:
    """Start a worker; its first message on ``results`` tells whether it is confined."""
    requests, results, out, err = os.pipe(), os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become_worker(config, namespaces, requests[0], results[1], out[1], err[1])
        finally:
            os._exit(1)
    for descriptor in (requests[0], results[1], out[1], err[1]):
        os.close(descriptor)
    return Worker(pid, requests[1], results[0], out[0], err[0])


def _become_worker(
    config: dict[str, Any], namespaces: bool, requests: int, results: int, out: int, err: int
) -> NoReturn:
    try:
        kernel.die_with_parent()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # if the machine runs out of memory, the kernel kills the code first
        user = confinement.foreign_id(os.getpid())
        folder = config["folder"]
        if namespaces:
            user = user if confinement.enter_namespaces() else None
            _fork_on()  # a new process tree begins with the next child
            confinement.build_file_tree(config["paths"], disk_bytes=config["limits"]["disk_bytes"])
            _fork_on()  # the worker must not be process 1, which ignores signals without a handler
            folder = "/tmp"
        elif user is not None:
            os.chown(folder, user, user)
        os.chdir(folder)
        os.setsid()
        # The order matters: each of these steps forbids system calls or access that the earlier steps need.
        _keep_only(requests, results, out, err)
        confinement.limit_resources(config["limits"])
        closed = confinement.give_up_identity(user, config["paths"], reads_all=not namespaces)
        kernel.die_with_parent()  # set again, because a change of user resets it
        locked = namespaces or confinement.lock_files(folder, config["paths"])
        filtered = kernel.filter_calls()
        if closed and not (locked and filtered):
            raise PermissionError(
                f"only root may read {closed}, and this kernel cannot restrict another user to reading only that"
            )
    except Exception as error:
        frames.write(results, {"failed": f"{type(error).__name__}: {error}"})
        os._exit(1)
    _begin_clean(folder, config)
    frames.write(results, {"network": not (namespaces or filtered), "files": not locked})
    error_chars = config["limits"]["output_bytes"]
    os._exit(cells.serve_cells(requests, results, session=config["session"], error_chars=error_chars))


def _fork_on() -> None:
    # Forks and returns only in the child. The parent waits for the child and exits with the child's status.
    pid = os.fork()
    if pid == 0:
        kernel.die_with_parent()
        return
    # The parent must not keep the pipes open: a reader sees the end only when all copies are closed.
    for descriptor in range(256):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    while True:
        child, status = os.wait()
        if child == pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _keep_only(requests: int, results: int, out: int, err: int) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((null, 0), (out, 1), (err, 2)):
        os.dup2(descriptor, standard)
    for descriptor in range(3, 256):
        if descriptor not in (requests, results):
            with contextlib.suppress(OSError):
                os.close(descriptor)
    for descriptor in (requests, results):
        os.set_inheritable(descriptor, False)


def _begin_clean(folder: str, config: dict[str, Any]) -> None:
    os.environ["HOME"] = os.environ["TMPDIR"] = folder
    # The code may import the installed turntree, so remove the stub packages with which the sandbox was started.
    for name in [name for name in sys.modules if name.split(".")[0] == "turntree"]:
        del sys.modules[name]
    sys.path[:] = ["", *(path for path in sys.path if path), *config["packages"]]
    sys.argv[:] = [""]
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]  # noqa: SIM115  (they stay open)
    sys.stdout = sys.__stdout__ = _written_through(1, config)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _written_through(2, config)  # type: ignore[misc]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    site.setquit()
    site.setcopyright()
    site.sethelper()


def _written_through(descriptor: int, config: dict[str, Any]) -> io.TextIOWrapper:
    # Flush output at once, so that it is not lost if the process is killed.
    buffer = _Unbuffered(io.FileIO(descriptor, "w", closefd=False))
    buffer.at_once = sys.maxsize if config["session"] else config["limits"]["output_bytes"]
    return io.TextIOWrapper(buffer, encoding="utf-8", errors="replace", write_through=True)


class _Unbuffered(io.BufferedWriter):
    # Flushes every write. A raw file would not do, because its write may write only a part of the data.

    at_once: int  #: bytes left that are flushed at once; later output is buffered, for code that prints without end

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        if self.at_once > 0:
            self.at_once -= written
            self.flush()
        return written
