"""Limits of code in a sandbox, and the result of a run."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

MEGABYTE = 2**20
VARIABLE = "TURNTREE_ISOLATION"
"""Environment variable that defines the isolation that ``auto`` means."""


class Isolation(StrEnum):
    """How code is isolated."""

    AUTO = "auto"
    """Namespaces where the kernel allows them, else a process."""
    NAMESPACES = "namespaces"
    """Own file tree, process tree, network and user, or an error."""
    PROCESS = "process"
    """An own process with limits, a filter of system calls and, where the kernel has it, Landlock for the files."""

    @classmethod
    def wanted(cls, isolation: str) -> Isolation:
        """The isolation of that name; for ``auto`` the one that the variable ``TURNTREE_ISOLATION`` names.

        Raises:
            ValueError: If there is none of that name.
        """
        wanted, where = cls(isolation), os.environ.get(VARIABLE)
        if wanted is not cls.AUTO or not where:
            return wanted
        if where not in tuple(cls):
            raise ValueError(f"{VARIABLE} must be one of {', '.join(cls)}, got {where!r}")
        return cls(where)


class CodeStatus(StrEnum):
    """How a run ended; its output on the error stream plays no part in it."""

    OK = "ok"
    ERROR = "error"
    """An exception, or an exit code that is not 0."""
    TIMEOUT = "timeout"
    MEMORY = "memory"
    PROCESSES = "processes"
    """Too many processes at once."""
    KILLED = "killed"
    """Ended by a signal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Limits of one run."""

    seconds: float = 10.0
    """Wall time."""
    cpu_seconds: int = 10
    """Processor time of each process, in seconds."""
    memory_bytes: int = 512 * MEGABYTE
    """Address space of each process beyond the interpreter's own at the start, and memory of all together."""
    file_bytes: int = 16 * MEGABYTE
    """Most bytes of a file."""
    disk_bytes: int = 64 * MEGABYTE
    """Most bytes of all files together, if the sandbox has its own file tree."""
    processes: int = 16
    """Most processes and threads at once."""
    output_bytes: int = 32_768
    """Bytes kept of each output stream; further ones are read, counted and dropped."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ValueError(f"SandboxLimits.{f.name} must be a positive number, got {value!r}")

    def to_json(self) -> dict[str, Any]:
        """The limits by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeResult:
    """The result of one run."""

    status: CodeStatus
    """How it ended."""
    stdout: str
    """Output, and the value of the last expression; the beginning, if it was too much."""
    stderr: str
    """Output on the error stream; the beginning, if it was too much."""
    error: str = ""
    """Traceback or reason of a failure."""
    dropped_bytes: int = 0
    """Bytes of output beyond the limit."""

    @property
    def ok(self) -> bool:
        """Whether the code ran to its end."""
        return self.status is CodeStatus.OK

    def to_text(self) -> str:
        """The result as text for a model: both streams, a mark where output was dropped, the error last."""
        parts = [self.stdout.rstrip("\n"), self.stderr.rstrip("\n")]
        if self.dropped_bytes:
            parts.append(f"[... {self.dropped_bytes} bytes of output left out ...]")
        parts.append(self.error.rstrip("\n"))
        return "\n".join(part for part in parts if part)
