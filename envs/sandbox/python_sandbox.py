"""Execution of untrusted Python code, isolated from the caller.

Covered, on Linux and without root:

- no inherited environment variables, open files or working folder
- wall time; processor time, file size and process count; bounded output
- memory of all processes together, shared pages counted once; none can be allocated that belongs to no process
  (no shared mappings without a file, no memfd, no System V segments)
- every process that the code started is killed afterwards, whoever its parent is by then; in a session all are
  stopped between two calls
- how a run ended is taken from the kernel's report of its process. The process's own report only explains it
- with namespaces (tried first): a file tree of its own in memory, with the system's and the interpreter's
  libraries read-only; no other process and no network visible
- without them, from Linux 5.13 on: Landlock, by which only the same files can be read, one folder written,
  and (6.12) no process outside is signalled
- a filter of system calls: no sockets, mounts, tracing, new namespaces, keys, BPF
- a caller that is root: the code runs as a user id of its own; in an own process it may read the interpreter's and the
  system's folders whatever their mode, if that user could not read the interpreter (only under Landlock and the filter)

Where the kernel refuses namespaces ``isolation="auto"`` warns and uses an own process; the variable
``TURNTREE_ISOLATION=namespaces`` forbids that.

Not covered: holes in the kernel, timing side channels, secrets inside of the
interpreter's own folders or the system's. In an own process (``isolation`` then
says ``process``): the names, owners and modes of files outside; without Landlock
(``files`` then says ``True``) also their contents where the user may read them,
world-writable folders and files in memory; before Linux 6.12 a
caller that is not root shares its user, and so its process limit and its signals,
with the code. Code in a session can end its own call early, and processes that the
call before left running continue within the next one. Memory and the number of processes
are checked twenty times a second. For hostile code on a machine that matters, use
``DockerSandbox`` or a separate machine.
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

_GRACE = 15.0
"""Seconds after a run's deadline within which the supervisor must answer."""
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


class IsolationWarning(UserWarning):
    """Code is isolated less well than requested."""


class PythonSandbox:
    """Runs one piece of Python code after another. The module lists what is covered.

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
            isolation: How code is isolated; the variable ``TURNTREE_ISOLATION`` may define what ``auto`` means.
            session: Whether variables, threads and processes persist from run to run, until a run is stopped or
                dies; between two runs they are stopped. Without it every run starts afresh.
            packages: Whether the code may import packages installed beside this interpreter.
            python: Interpreter that runs the code, 3.10 or newer; another one than this needs ``packages=False``.
        """
        self.limits = limits or SandboxLimits()
        self.wanted = Isolation.wanted(isolation)
        self.session = session
        self.packages = packages
        self.python = python
        self.isolation: Isolation | None = None
        """Isolation in force; ``None`` before the first run."""
        self.network: bool | None = None
        """Whether the code could reach a network; ``None`` before the first run."""
        self.files: bool | None = None
        """Whether the code could read files of this machine that its user may read; ``None`` before the first run."""
        self.refused = ""
        """Why there are no namespaces."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    @property
    def supervisor_pid(self) -> int | None:
        """Process id of the supervisor, the parent of all processes; ``None`` if it does not run."""
        return self._process.pid if self._process is not None else None

    def run(self, code: str) -> CodeResult:
        """Run ``code`` and wait until it ends.

        Raises:
            SandboxError: If the code could not be confined, or the supervisor was lost.
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
            SandboxError: If code could not be confined.
        """
        with self._lock:
            if self._process is None:
                self._start(warn=False)

    def close(self) -> None:
        """End the session and all its processes; a later ``run`` starts afresh."""
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
            remedy = f"allow user namespaces, take DockerSandbox, or set {VARIABLE}=namespaces to forbid this"
            warnings.warn(f"{self.weakness()}; {remedy}", IsolationWarning, stacklevel=3)
        return process

    def weakness(self) -> str:
        """How isolation is weaker than namespaces, and why; empty if they are in force."""
        if self.isolation is not Isolation.PROCESS:
            return ""
        seen = "can read every file that its user may read, the answers of data sets among them"
        return (
            f"code runs in an own process, without namespaces ({self.refused or 'as it was wanted'}), "
            f"and {seen if self.files else 'Landlock keeps the files of this machine from it'}"
        )

    def shows(self, path: Path) -> bool:
        """Whether a path lies in a folder that the code can read, however it is isolated."""
        shown = (*confinement.SYSTEM, *interpreter_folders(self.python), *self._folders())
        return any(path.resolve().is_relative_to(os.path.realpath(folder)) for folder in shown)

    def _folders(self) -> list[str]:
        """Folders of packages that the code may import."""
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
    """The paths that an interpreter must be able to read, below ``/`` and ``/usr``, which are kept anyway."""
    roots = {Path(os.path.realpath(python)).parent.parent, Path(python).parent.parent}
    if python == sys.executable:
        roots |= {Path(sys.base_prefix), Path(os.path.realpath(sys.base_prefix)), Path(sys.prefix)}
    return sorted(str(root) for root in roots if len(root.parts) > 2)


def _package_folders() -> list[str]:
    own = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    found = [path for path in sys.path if path in own or Path(path).name in ("site-packages", "dist-packages")]
    return [path for path in found if os.path.isdir(path)]
