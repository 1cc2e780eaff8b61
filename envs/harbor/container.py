from __future__ import annotations

import contextlib
import hashlib
import os
import re
import subprocess
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turntree.envs.errors import SandboxError, ToolError
from turntree.envs.harbor.tasks import HarborTask
from turntree.envs.sandbox.docker_sandbox import Head

_DOCKER_SECONDS = 60.0  #: seconds for any Docker command except building an image and running a policy's command
# Seconds after which a container ends by itself, in case the process that should remove the container has died.
_LIFETIME = 24 * 3600
_PROCESSES = 1024
_MEMORY_MB = 2048
_MOST_ARGUMENT = 100_000  #: bytes of a command; Linux allows 128 KiB per argument
# The shell prints its process id first, so that a command that overruns can be killed with all its children.
_SHELL = 'echo $$; if command -v bash > /dev/null; then exec bash -c "$1"; else exec sh -c "$1"; fi'

#: messages of Docker and Podman for a missing path
_NO_FILE = re.compile(rb"no such file|could not (?:be )?f(?:i|ou)nd", re.IGNORECASE)
_building = threading.Lock()


@dataclass(frozen=True, slots=True)
class Ran:
    code: int | None  #: exit status; None if the command was killed at its deadline
    text: str  #: output; only its beginning and its end if it is long


class Container:
    """Start a container from a task's image.

    Args:
        image: The image.
        docker: The command, ``docker`` or one that takes the same arguments.
        network: Overrides the task's network.
        shown: Bytes kept of the beginning of a command's output, and as many of its end.

    Raises:
        SandboxError: If Docker is missing or cannot start the container.
    """

    def __init__(self, task: HarborTask, image: str, *, docker: str, network: str | None, shown: int) -> None:
        self.name = f"turntree-{uuid.uuid4().hex}"
        self._docker, self._shown = docker, shown
        bounds = [f"--pids-limit={_PROCESSES}", f"--memory={task.memory_mb or _MEMORY_MB}m"]
        bounds += [f"--cpus={task.cpus}"] if task.cpus else []
        bounds += [f"--workdir={task.workdir}"] if task.workdir else []
        bounds += [part for name in task.variables for part in ("--env", name)]
        options = ["--detach", "--rm", "--security-opt=no-new-privileges", f"--network={network or task.network}"]
        run_docker(
            [docker, "run", *options, f"--name={self.name}", *bounds, "--entrypoint=sleep", image, str(_LIFETIME)],
            variables=task.variables,
            seconds=task.build_seconds,  # long, because Docker may have to pull the image
        )

    def run(self, command: str, seconds: float, *, user: str | None = None, variables: Mapping[str, str] = {}) -> Ran:
        """Run a command with the image's bash (or sh) and wait for it.

        Raises:
            ToolError: If the command is too long for a command-line argument.
            SandboxError: If Docker cannot run the command.
        """
        if len(command.encode()) > _MOST_ARGUMENT or "\0" in command:
            raise ToolError(f"a command has at most {_MOST_ARGUMENT} bytes, none of them NUL; write a file in parts")
        options = [part for name in variables for part in ("--env", name)] + ([f"--user={user}"] if user else [])
        process = subprocess.Popen(
            [self._docker, "exec", *options, self.name, "sh", "-c", f"{_SHELL} 2>&1", "sh", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **variables},
        )
        out, err = Head(process.stdout, self._shown, tail=self._shown), Head(process.stderr, self._shown)
        code: int | None
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
            number = out.text.partition("\n")[0]
            self._ask("exec", "--user=0", self.name, "sh", "-c", f"kill -9 -- -{number} {number}", check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_DOCKER_SECONDS)
            process.kill()
            process.wait()
        for head in (out, err):  # background processes may keep the pipes open
            head.join(timeout=1.0)
        number, _, text = out.text.partition("\n")
        if not number.isdigit():
            raise SandboxError(f"the container of this episode runs no command: {(out.text + err.text).strip()[-500:]}")
        return Ran(code, text)

    def put(self, folder: Path, path: str) -> None:
        self._ask("exec", "--user=0", self.name, "sh", "-c", 'rm -rf "$1"; mkdir -p "$1"', "sh", path)
        self._ask("cp", f"{folder}/.", f"{self.name}:{path}")

    def read(self, path: str) -> str | None:
        ran = self._ask("exec", "--user=0", self.name, "head", "-c", "65536", path, check=False)
        return ran.stdout.decode(errors="replace") if ran.returncode == 0 else None

    def close(self) -> None:
        with contextlib.suppress(SandboxError):
            self._ask("kill", self.name, check=False)  # sends SIGKILL: a plain stop would wait for a grace period
            self._ask("rm", "--force", self.name, check=False)

    def give(self, path: str, other: Container) -> None:
        parent = path.rpartition("/")[0] or "/"
        other._ask("exec", "--user=0", other.name, "mkdir", "-p", parent)
        with subprocess.Popen(
            [self._docker, "cp", f"{self.name}:{path}", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as out:
            given = subprocess.run(
                [self._docker, "cp", "-", f"{other.name}:{parent}"], stdin=out.stdout, capture_output=True, check=False
            )
            output = out.stderr.read() if out.stderr else b""
        if out.returncode == 0 and given.returncode:
            raise SandboxError(
                f"{path} cannot be copied to the container of the tests: {given.stderr[-500:].decode(errors='replace')}"
            )
        if out.returncode and not _NO_FILE.search(output):
            raise SandboxError(
                f"{path} cannot be copied out of the container: {output[-500:].decode(errors='replace')}"
            )

    def _ask(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        return run_docker([self._docker, *words], check=check)


def built_image(folder: Path, *, docker: str, seconds: float) -> str:
    """Return the image of a folder with a ``Dockerfile``, and build it if Docker does not have it.

    Raises:
        SandboxError: If Docker cannot build the image, or not in time.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(folder)}\0{path.stat().st_mode & 0o111}\0".encode() + path.read_bytes())
    image = f"turntree-harbor:{digest.hexdigest()[:24]}"
    with _building:
        if run_docker([docker, "image", "inspect", image], check=False).returncode:
            run_docker([docker, "build", "--quiet", f"--tag={image}", str(folder)], seconds=seconds)
    return image


def run_docker(
    line: Sequence[str], *, check: bool = True, seconds: float = _DOCKER_SECONDS, variables: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[bytes]:
    """Run a Docker command.

    Args:
        check: Whether an exit status other than 0 raises.
        variables: Environment variables of the Docker process. ``--env NAME`` in the command passes them to the
            container, without showing their values in the list of processes.

    Raises:
        SandboxError: If Docker is missing, fails or exceeds its deadline.
    """
    try:
        ran = subprocess.run(line, capture_output=True, check=False, timeout=seconds, env={**os.environ, **variables})
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"'{' '.join(line[:2])}' did not end within {seconds:g} s") from error
    except OSError as error:
        raise SandboxError(
            f"cannot run {line[0]!r}: {error}; install Docker, or Podman and give docker='podman'"
        ) from error
    if check and ran.returncode:
        output = (ran.stderr or ran.stdout).decode(errors="replace").strip()
        raise SandboxError(f"'{' '.join(line[:2])}' failed: {output[-500:]}")
    return ran
