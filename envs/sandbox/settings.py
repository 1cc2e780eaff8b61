from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

MEGABYTE = 2**20
VARIABLE = "TURNTREE_ISOLATION"  #: environment variable that defines what ``auto`` means


class Isolation(StrEnum):
    """How code is isolated."""

    AUTO = "auto"  #: namespaces if the kernel allows them, else a process
    NAMESPACES = "namespaces"  #: separate file tree, process tree, network and user, or an error
    #: a separate process with limits, a system-call filter and Landlock for the files (if available)
    PROCESS = "process"

    @classmethod
    def wanted(cls, isolation: str) -> Isolation:
        """Return the isolation of that name; ``auto`` is replaced by the variable ``TURNTREE_ISOLATION``, if set.

        Raises:
            ValueError: If there is no such isolation.
        """
        wanted, where = cls(isolation), os.environ.get(VARIABLE)
        if wanted is not cls.AUTO or not where:
            return wanted
        if where not in tuple(cls):
            raise ValueError(f"{VARIABLE} must be one of {', '.join(cls)}, got {where!r}")
        return cls(where)


class CodeStatus(StrEnum):
    """How a run ended; output on the error stream does not matter."""

    OK = "ok"
    ERROR = "error"  #: an exception, or an exit code other than 0
    TIMEOUT = "timeout"
    MEMORY = "memory"
    PROCESSES = "processes"  #: the code had too many processes at once
    KILLED = "killed"  #: ended by a signal


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Limits of one run."""

    seconds: float = 10.0  #: wall time
    cpu_seconds: int = 10  #: CPU time of each process
    #: limit on two things: each process's address space beyond the interpreter's, and the memory of all processes
    memory_bytes: int = 512 * MEGABYTE
    file_bytes: int = 16 * MEGABYTE  #: size of one file
    disk_bytes: int = 64 * MEGABYTE  #: size of all files together
    processes: int = 16  #: processes and threads at once
    output_bytes: int = 32_768  #: bytes kept of each output stream; further output is counted and dropped

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ValueError(f"SandboxLimits.{f.name} must be a positive number, got {value!r}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeResult:
    """The result of one run."""

    status: CodeStatus
    stdout: str  #: output and the value of the last expression; cut at the end if too long
    stderr: str  #: output on the error stream; cut at the end if too long
    error: str = ""  #: traceback, or the reason why the run failed
    dropped_bytes: int = 0  #: bytes of output beyond the limit

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end."""
        return self.status is CodeStatus.OK

    def to_text(self) -> str:
        """Return the result as text for a model: both streams, a mark for dropped output, then the error."""
        parts = [self.stdout.rstrip("\n"), self.stderr.rstrip("\n")]
        if self.dropped_bytes:
            parts.append(f"[... {self.dropped_bytes} bytes of output left out ...]")
        parts.append(self.error.rstrip("\n"))
        return "\n".join(part for part in parts if part)
