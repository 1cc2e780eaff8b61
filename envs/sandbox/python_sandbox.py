"""Runs untrusted Python code, isolated from the caller.

Covered, on Linux and without root:

- no inherited environment variables, open files or working folder
- limits on wall time, CPU time, file size, process count and output
- a limit on the memory of all processes together, with shared pages counted once; memory that no process is charged
  for cannot be allocated (no shared mappings without a file, no memfd, no System V segments)
- every process that the code started is killed afterwards, even if its parent has died; in a session (variables
  persist from run to run) all processes are stopped between two runs instead
- the exit status from the kernel decides whether a run succeeded; the process's own report only adds an explanation
- with namespaces (tried first): a separate file tree in memory with the system's and the interpreter's libraries
  read-only; no other process and no network is visible
- without namespaces, from Linux 5.13 on: Landlock (a process's own limit on its file access), so only these libraries
  can be read, only one folder can be written, and (from 6.12 on) no process outside can be signalled
- a system-call filter: no sockets, mounts, tracing, new namespaces, keys, BPF
- if the caller is root, the code runs under a separate user id. If this user may not read the interpreter and there are
  no namespaces, the code may read the interpreter's and the system's folders whatever their mode; this requires
  Landlock and the filter

If the kernel refuses namespaces, ``isolation="auto"`` warns and uses a separate process. Set
``TURNTREE_ISOLATION=namespaces`` to forbid that.

Not covered: holes in the kernel, timing side channels, secrets inside the interpreter's or the system's folders.
Without namespaces (``isolation`` is then ``process``), the code can see names, owners and modes of files outside.
Without Landlock (``files`` is then ``True``), it can also read files that the user may read and write to world-writable
folders. Before Linux 6.12, code of a caller that is not root shares the caller's user, so it counts in the caller's
process limit and can signal the caller's processes. Code in a session can end its own run early, and processes left
running by one run continue in the next run. Memory and process count are checked only twenty times per second. For
hostile code on a machine that matters, use ``DockerSandbox`` or a separate machine.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import sysconfig
import threading
import warnings
from pathlib import Path
from time import monotonic
from typing import Any, Self

from turntree.envs.errors import SandboxError, SandboxTimeout
from turntree.envs.sandbox import confinement, frames
from turntree.envs.sandbox.settings import VARIABLE, CodeResult, CodeStatus, Isolation, SandboxLimits

_GRACE = 15.0  #: seconds after a run's deadline within which the supervisor must answer
_START_SECONDS = 30.0
# Stub packages, so that the supervisor imports the sandbox's modules without the packages' __init__ files, which would
# import all of turntree.
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
# Numeric libraries start one thread per core, which would exceed the limit on processes and threads.
_ENVIRONMENT |= {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


class IsolationWarning(UserWarning):
    """Code is isolated less strongly than requested."""


class PythonSandbox:
    """Runs pieces of Python code one after another; the module's docstring lists what is covered.

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
        """Configure the sandbox; the first run starts its processes.

        Args:
            isolation: How code is isolated; the variable ``TURNTREE_ISOLATION`` may define what ``auto`` means.
            session: Whether variables, threads and processes persist from run to run, until a run is stopped or dies.
                Threads and processes are stopped between runs. Without a session every run starts from scratch.
            packages: Whether the code may import packages installed for the running interpreter.
            python: Interpreter for the code, 3.10 or newer. An interpreter other than the running one needs
                ``packages=False``.
        """
        self.limits = limits or SandboxLimits()
        self.wanted = Isolation.wanted(isolation)
        self.session = session
        self.packages = packages
        self.python = python
        self.isolation: Isolation | None = None
        """Isolation that is in effect; ``None`` before the first run."""
        self.network: bool | None = None
        """Whether the code could reach a network; ``None`` before the first run."""
        self.files: bool | None = None
        """Whether the code could read files of this machine that its user may read; ``None`` before the first run."""
        self.refused = ""
        """Reason why the sandbox has no namespaces; empty if it has them."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def supervisor_pid(self) -> int | None:
        """Process id of the supervisor, the parent of all the sandbox's processes; ``None`` if none is running."""
        return self._process.pid if self._process is not None else None

    def run(self, code: str) -> CodeResult:
        """Run ``code`` and wait until it ends.

        Raises:
            SandboxError: If the code could not be confined, or the supervisor died.
        """
        with self._lock:
            process = self._process or self._start(warn=True)
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

    def confine(self) -> None:
        """Start the supervisor, so that ``isolation``, ``network`` and ``files`` are known.

        Raises:
            SandboxError: If code cannot be confined.
        """
        with self._lock:
            if self._process is None:
                self._start(warn=False)

    def close(self) -> None:
        """End the session and all its processes; a later ``run`` starts from scratch."""
        with self._lock:
            self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _start(self, *, warn: bool) -> subprocess.Popen[bytes]:
        if sys.platform != "linux":
            raise SandboxError(f"PythonSandbox needs Linux, this is {sys.platform}; use DockerSandbox")
        boot = _BOOT.format(folder=str(Path(__file__).parent))
        try:
            process = subprocess.Popen(
                # -I and -S: no environment variables, no user's or installed packages, and no .pth files at the start.
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
        config = {
            "limits": self.limits.to_json(),
            "isolation": str(self.wanted),
            "session": self.session,
            "packages": self._folders(),
            "paths": [*interpreter_folders(self.python), *self._folders()],
        }
        answer = self._ask(process, config, _START_SECONDS)
        self.isolation = Isolation(answer["isolation"])
        self.network, self.files, self.refused = answer["network"], answer["files"], answer["refused"]
        if warn and self.wanted is not self.isolation and self.isolation is Isolation.PROCESS:
            remedy = f"allow user namespaces, use DockerSandbox, or set {VARIABLE}=namespaces to make this an error"
            warnings.warn(f"{self.weakness()}; {remedy}", IsolationWarning, stacklevel=3)
        return process

    def weakness(self) -> str:
        """Describe how the isolation is weaker than with namespaces, and why; empty with namespaces."""
        if self.isolation is not Isolation.PROCESS:
            return ""
        seen = "it can read every file that its user may read, including the answers of data sets"
        return (
            f"code runs in a separate process without namespaces ({self.refused or 'as requested'}), "
            f"and {seen if self.files else 'Landlock hides the files of this machine'}"
        )

    def shows(self, path: Path) -> bool:
        """Return whether a path lies in a folder that the code can read under every kind of isolation."""
        shown = (*confinement.SYSTEM, *interpreter_folders(self.python), *self._folders())
        return any(path.resolve().is_relative_to(os.path.realpath(folder)) for folder in shown)

    def _folders(self) -> list[str]:
        return _package_folders() if self.packages else []

    def _ask(self, process: subprocess.Popen[bytes], message: dict[str, Any], seconds: float) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        end = monotonic() + seconds
        try:
            frames.write(process.stdin.fileno(), message)
            poll = select.poll()
            poll.register(process.stdout, select.POLLIN)
            if not poll.poll(max(0.0, end - monotonic()) * 1000):
                raise SandboxTimeout(f"the sandbox's supervisor did not answer within {seconds:g} s")
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
                "set python= to an interpreter that every user may read, or use DockerSandbox"
            )
        return answer

    def _leave(self, *, patience: float = _GRACE) -> None:
        # The supervisor kills all its descendants before it ends.
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
    """Return the folders that an interpreter must read, except ``/`` and ``/usr``, which are always readable."""
    roots = {Path(os.path.realpath(python)).parent.parent, Path(python).parent.parent}
    if python == sys.executable:
        roots |= {Path(sys.base_prefix), Path(os.path.realpath(sys.base_prefix)), Path(sys.prefix)}
    return sorted(str(root) for root in roots if len(root.parts) > 2)


def _package_folders() -> list[str]:
    own = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    found = [path for path in sys.path if path in own or Path(path).name in ("site-packages", "dist-packages")]
    return [path for path in found if os.path.isdir(path)]
