"""Runs Python code in a Docker container: an alternative to ``PythonSandbox`` with stronger isolation.

Docker isolates files, processes and network, and limits memory and the number of processes. This module enforces the
deadline: it kills the container by name. Not covered: holes in the kernel or in Docker. Not supported: sessions, and a
limit on file size (files count as memory).
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import uuid
from typing import IO

from turntree.envs.errors import SandboxError
from turntree.envs.sandbox.settings import CodeResult, CodeStatus, SandboxLimits

_DOCKER_FAILED = (125, 126, 127)
_KILLED = 137  #: exit code after SIGKILL, which in practice means that the memory limit was exceeded


class DockerSandbox:
    """Runs each piece of code in a new container."""

    def __init__(
        self,
        image: str = "python:3.12-slim",
        *,
        limits: SandboxLimits | None = None,
        docker: str = "docker",
        start_seconds: float = 10.0,
    ) -> None:
        """Choose the image, which must already be on the machine.

        Args:
            image: Image that contains a ``python``.
            start_seconds: Time that Docker may take to start a container.
        """
        self.image = image
        self.limits = limits or SandboxLimits()
        self.docker = docker
        self.start_seconds = start_seconds

    def command(self, name: str) -> list[str]:
        """Return the command line that runs a container called ``name`` with code from standard input."""
        limits = self.limits
        return [
            *(self.docker, "run", "--rm", "--interactive", "--pull=never", f"--name={name}", "--network=none"),
            *("--read-only", f"--tmpfs=/tmp:size={limits.disk_bytes}", "--workdir=/tmp", "--user=65534:65534"),
            *("--cap-drop=ALL", "--security-opt=no-new-privileges", "--ipc=none", "--cpus=1"),
            *(f"--memory={limits.memory_bytes}", f"--memory-swap={limits.memory_bytes}"),
            *(f"--pids-limit={limits.processes}", f"--ulimit=fsize={limits.file_bytes}"),
            *(self.image, "python", "-I", "-B", "-u", "-"),
        ]

    def run(self, code: str) -> CodeResult:
        """Run ``code`` and wait until it ends.

        Raises:
            SandboxError: If Docker cannot run the container.
        """
        name = f"turntree-{uuid.uuid4().hex}"
        try:
            process = subprocess.Popen(
                self.command(name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        except OSError as error:
            raise SandboxError(f"cannot run {self.docker!r}: {error}; install Docker or use PythonSandbox") from error
        # Threads read the streams while the code runs: a full pipe would block the container.
        out, err = Head(process.stdout, self.limits.output_bytes), Head(process.stderr, self.limits.output_bytes)
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.write(code.encode())
            process.stdin.close()
        late = False
        try:
            exit_code = process.wait(timeout=self.limits.seconds + self.start_seconds)
        except subprocess.TimeoutExpired:
            late = True
            exit_code = self._kill(name, process)
        for head in (out, err):
            head.join(timeout=self.start_seconds)
        if not late and exit_code in _DOCKER_FAILED:
            raise SandboxError(f"Docker could not run {self.image}: {err.text.strip()[-500:]}")
        ended = {0: CodeStatus.OK, _KILLED: CodeStatus.MEMORY}.get(exit_code, CodeStatus.ERROR)
        status = CodeStatus.TIMEOUT if late else ended
        reason = {
            CodeStatus.TIMEOUT: f"stopped after {self.limits.seconds:g} s",
            CodeStatus.MEMORY: "killed, most likely for its memory",
        }.get(status, "")
        return CodeResult(
            status=status, stdout=out.text, stderr=err.text, error=reason, dropped_bytes=out.dropped + err.dropped
        )

    def close(self) -> None:
        """Do nothing: no state is kept between runs."""

    def _kill(self, name: str, process: subprocess.Popen[bytes]) -> int:
        command = [self.docker, "kill", name]
        killed = subprocess.run(command, capture_output=True, timeout=self.start_seconds, check=False)
        process.kill()  # the docker command-line client, which may outlive its container
        exit_code = process.wait()
        if killed.returncode:
            raise SandboxError(f"container {name} could not be killed: {killed.stderr.decode(errors='replace')[-500:]}")
        return exit_code


class Head(threading.Thread):
    """Reads a stream to its end in a thread; keeps the first ``limit`` bytes and the last ``tail`` bytes."""

    def __init__(self, stream: IO[bytes] | None, limit: int, *, tail: int = 0) -> None:
        super().__init__(daemon=True)
        assert stream is not None
        self._stream, self._limit, self._last = stream, limit, tail
        self._kept, self._end = bytearray(), bytearray()
        self.dropped = 0
        self.start()

    def run(self) -> None:
        with self._stream as stream:
            while data := stream.read1(1 << 16):  # type: ignore[attr-defined]
                room = max(0, self._limit - len(self._kept))
                self._kept += data[:room]
                self._end += data[room:]
                over = max(0, len(self._end) - self._last)
                self.dropped += over
                del self._end[:over]

    @property
    def text(self) -> str:
        left_out = f"\n[... {self.dropped} bytes ...]\n".encode() if self.dropped and self._last else b""
        return (self._kept + left_out + self._end).decode("utf-8", "replace")
