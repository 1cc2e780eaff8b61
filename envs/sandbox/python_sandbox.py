"""Runs Python code that nobody has read, kept apart from the caller.

Covered, on Linux and without root:

- no inherited environment variables, open files or working folder
- wall time; processor time, memory, file size and process count; bounded output
- everything that the code started is killed afterwards, whoever its parent is by then
- with namespaces (tried first): a file tree of its own in memory, with the system's and the interpreter's
  libraries read-only; no other process and no network in sight
- a filter of system calls: no sockets, mounts, tracing, new namespaces, keys, BPF
- a caller that is root: the code runs as a user that nobody else is

Not covered: holes in the kernel, timing side channels, secrets inside of the
interpreter's own folders or the system's. Where the kernel forbids namespaces
(``isolation`` then says ``process``): files that the user may read can be read,
world-writable folders written, and a caller that is not root shares its user,
and so its process limit and its signals, with the code. Memory of all processes
together and their number are watched twenty times a second there and here. For
hostile code on a machine that matters, use ``DockerSandbox`` or a machine apart.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, Self

from turntree.envs.errors import EnvError
from turntree.envs.sandbox import frames
from turntree.envs.sandbox.settings import CodeResult, CodeStatus, Isolation, SandboxLimits

_GRACE = 15.0
"""Seconds beyond a run's deadline within which the supervisor must answer."""
_START_SECONDS = 30.0
_BOOT = """
import sys, types
for name, path in (("turntree", []), ("turntree.envs", []), ("turntree.envs.sandbox", [{folder!r}])):
    package = types.ModuleType(name)
    package.__path__ = path
    sys.modules[name] = package
from turntree.envs.sandbox.supervisor import main
main()
"""
_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
_ENVIRONMENT |= {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


class SandboxError(EnvError):
    """The sandbox itself failed: no verdict on the code."""


class PythonSandbox:
    """Runs one piece of Python code after another. See the module for what is covered.

    Example:
        >>> with PythonSandbox() as sandbox:
        ...     sandbox.run("6 * 7").stdout
        '42\\n'
    """

    def __init__(
        self,
        *,
        limits: SandboxLimits | None = None,
        isolation: Isolation | str = Isolation.AUTO,
        session: bool = False,
        packages: bool = True,
        python: str = sys.executable,
    ) -> None:
        """Choose the confinement; processes are started with the first run.

        Args:
            limits: Bounds of one run.
            isolation: How code is kept apart.
            session: Whether variables, threads and processes stay from run to run, until a run is stopped or
                dies. Without it every run begins anew.
            packages: Whether the code may import what is installed beside this interpreter.
            python: Interpreter that runs the code, 3.10 or newer; another one than this needs ``packages=False``.
        """
        self.limits = limits or SandboxLimits()
        self.wanted = Isolation(isolation)
        self.session = session
        self.packages = packages
        self.python = python
        self.isolation: Isolation | None = None
        """What is in force; ``None`` before the first run."""
        self.network: bool | None = None
        """Whether the code could reach a network; ``None`` before the first run."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def supervisor_pid(self) -> int | None:
        """Process id of the supervisor, below which everything runs; ``None`` where it does not run."""
        return self._process.pid if self._process is not None else None

    def run(self, code: str) -> CodeResult:
        """Run ``code`` and wait for its end.

        Raises:
            SandboxError: If the code could not be confined, or the supervisor was lost.
        """
        with self._lock:
            process = self._process or self._start()
            answer = self._ask(process, {"code": code}, self.limits.seconds + _GRACE)
            if not answer.get("clean", True):
                self._leave(patience=0)
                raise SandboxError("processes of the code could not be killed")
        return CodeResult(
            status=CodeStatus(answer["status"]),
            stdout=answer["stdout"],
            stderr=answer["stderr"],
            error=answer["error"],
            dropped_bytes=answer["dropped"],
        )

    def close(self) -> None:
        """End the session and all its processes; a later ``run`` begins anew."""
        with self._lock:
            self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        if sys.platform != "linux":
            raise SandboxError(f"PythonSandbox needs Linux, this is {sys.platform}; use DockerSandbox")
        boot = _BOOT.format(folder=str(Path(__file__).parent))
        try:
            process = subprocess.Popen(
                [self.python, "-I", "-S", "-c", boot],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise SandboxError(f"cannot run the interpreter {self.python!r}: {error}") from error
        self._process = process
        folders = _package_folders() if self.packages else []
        config = {
            "limits": self.limits.to_json(),
            "isolation": str(self.wanted),
            "session": self.session,
            "packages": folders,
            "paths": [*interpreter_folders(self.python), *folders],
        }
        answer = self._ask(process, config, _START_SECONDS)
        self.isolation, self.network = Isolation(answer["isolation"]), answer["network"]
        return process

    def _ask(self, process: subprocess.Popen[bytes], message: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        end = monotonic() + seconds
        try:
            frames.write(process.stdin.fileno(), message)
            poll = select.poll()
            poll.register(process.stdout, select.POLLIN)
            if not poll.poll(max(0.0, end - monotonic()) * 1000):
                raise SandboxError(f"the sandbox's supervisor did not answer within {seconds:g} s")
            answer = frames.read(process.stdout.fileno())
        except (OSError, frames.Closed, SandboxError) as error:
            self._leave(patience=1)
            if isinstance(error, SandboxError):
                raise
            raise SandboxError(f"the sandbox's supervisor died: {error or type(error).__name__}") from error
        if "failed" in answer:
            self._leave()
            raise SandboxError(
                f"code cannot be confined here with isolation={str(self.wanted)!r}: {answer['failed']}; "
                "give python= an interpreter that every user may read, or take DockerSandbox"
            )
        return answer

    def _leave(self, *, patience: float = _GRACE) -> None:
        """End the supervisor, which ends everything below it."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def interpreter_folders(python: str) -> list[str]:
    """What an interpreter must be able to read, below ``/`` and ``/usr``, which are kept anyway."""
    roots = {Path(os.path.realpath(python)).parent.parent, Path(python).parent.parent}
    if python == sys.executable:
        roots |= {Path(sys.base_prefix), Path(os.path.realpath(sys.base_prefix)), Path(sys.prefix)}
    return sorted(str(root) for root in roots if len(root.parts) > 2)


def _package_folders() -> list[str]:
    own = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    found = [path for path in sys.path if path in own or Path(path).name in ("site-packages", "dist-packages")]
    return [path for path in found if os.path.isdir(path)]
