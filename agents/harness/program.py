"""The programs that can be episodes: a Python callable, or a command line, in a container if it is to be.

A command has a process group of its own, which is killed at the deadline, and the rights of whoever started the
training unless it runs in a container. A callable runs in a thread of this process: Python cannot stop it, but once
nobody waits for it, it is refused every further turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import os
import re
import shlex
import shutil
import signal
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from turntree.agents.errors import AgentError, UsageError

InThread = Callable[[Callable[[], str]], Coroutine[Any, Any, str]]
"""The result of a call that may block."""
_MOST_OUTPUT = 1 << 20
"""Bytes of a command's output that are kept, the last ones."""
_KILL_SECONDS = 10.0
"""Time in which a killed container ends, or is given up."""


class ProgramFailed(AgentError):
    """A program ended without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a program is given."""

    prompt: str
    """The task, as text."""
    task_id: str
    """Its name."""
    seed: int
    """Seed of the episode, for what the program itself draws; samples of one task have different ones."""
    base_url: str
    """Where an OpenAI client finds the policy; one of Anthropic's finds it without the ``/v1``."""
    api_key: str
    """Names the episode."""
    model: str
    """Name of the policy."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of a command."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "OPENAI_MODEL": self.model,
            "ANTHROPIC_BASE_URL": self.base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": self.api_key,
            "ANTHROPIC_MODEL": self.model,
            "TASK_PROMPT": self.prompt,
            "TASK_ID": self.task_id,
            "TASK_SEED": str(self.seed),
        }


class Program(Protocol):
    """Something that answers an assignment."""

    async def run(self, given: Assignment, in_thread: InThread) -> str:
        """The final answer. Cancelled, it ends what it began.

        Args:
            given: The assignment.
            in_thread: Runs a call in a thread.

        Raises:
            ProgramFailed: If the program failed.
        """
        ...


class CallableProgram:
    """A callable of Python, or a coroutine function: its answer is what it returns.

    Args:
        name: ``MODULE:NAME``. The callable is given, by name, those fields of ``Assignment`` that it has parameters
            for.

    Raises:
        UsageError: If there is none, or it has a parameter without default that is no such field.
    """

    def __init__(self, name: str) -> None:
        module, _, attribute = name.partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            said = f"program takes MODULE:NAME of a callable that can be imported, got {name!r}: {error}"
            raise UsageError(said) from error
        self._call = found
        offered = {field.name for field in fields(Assignment)}
        parameters = inspect.signature(found).parameters.values()
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        needed = {p.name for p in named if p.default is p.empty}
        if missing := sorted(needed - offered):
            raise UsageError(
                f"{name} is given {', '.join(sorted(offered))} by name, and has the parameters {', '.join(missing)}; "
                "give these defaults"
            )
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._wanted = offered if takes_all else offered & {p.name for p in parameters}

    async def run(self, given: Assignment, in_thread: InThread) -> str:
        """See ``Program``."""
        arguments = {name: getattr(given, name) for name in self._wanted}

        def call() -> str:
            answer = self._call(**arguments)
            return str(asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer)

        try:
            return await in_thread(call)
        except Exception as error:  # of somebody else's program: whatever it is, it has no answer
            raise ProgramFailed(f"the program raised {type(error).__name__}: {error}") from error


class CommandProgram:
    """A command line: the prompt is its standard input, its answer what it writes to standard output.

    Args:
        command: The command and its arguments, in which ``{prompt}``, ``{task_id}`` and ``{seed}`` are filled in.
        image: The container image that it runs in; ``None`` runs it as a process of this machine.

    Raises:
        UsageError: If it is empty, or there is no Docker for the image.
    """

    def __init__(self, command: str | Sequence[str], *, image: str | None = None) -> None:
        self._command = shlex.split(command) if isinstance(command, str) else [*command]
        self._image = image
        if not self._command:
            raise UsageError("command is empty; give a command line, for example 'python agent.py {prompt}'")
        if image is not None and shutil.which("docker") is None:
            raise UsageError(f"image={image!r} needs the command docker, which is not here; leave image out")

    async def run(self, given: Assignment, in_thread: InThread) -> str:
        """See ``Program``."""
        container = f"turntree-{uuid.uuid4().hex}"
        try:
            process = await asyncio.create_subprocess_exec(
                *self.line(given, container),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **_unproxied(), **given.variables},
                start_new_session=True,
            )
        except OSError as error:
            raise ProgramFailed(f"{self._command[0]!r} cannot be run: {error}") from error
        assert process.stdin is not None, "all three are pipes"
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            with contextlib.suppress(ConnectionError):
                process.stdin.write(given.prompt.encode())
                process.stdin.close()
            out, err, status = await asyncio.gather(_tail(process.stdout), _tail(process.stderr), process.wait())
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if self._image is not None and process.returncode is None:
                await _kill_container(container)
        if status:
            last = " ".join(err.strip().splitlines()[-1:])
            raise ProgramFailed(f"the program ended with status {status}: {last or 'it said nothing'}")
        return out.strip()

    def line(self, given: Assignment, container: str) -> list[str]:
        """The command line, in a container of this name if there is an image."""
        filled = {"{prompt}": given.prompt, "{task_id}": given.task_id, "{seed}": str(given.seed)}
        line = [_MARK.sub(lambda mark: filled[mark[0]], part) for part in self._command]
        if self._image is None:
            return line
        names = [argument for name in given.variables for argument in ("--env", name)]
        # The gateway listens at this machine's own address, which a container of the host's network reaches.
        options = ["--rm", "--interactive", "--network=host", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
        return ["docker", "run", *options, f"--name={container}", *names, self._image, *line]


_MARK = re.compile(r"\{(prompt|task_id|seed)\}")


async def _awaited(answer: Any) -> Any:
    return await answer


async def _tail(stream: asyncio.StreamReader) -> str:
    kept = b""
    while data := await stream.read(1 << 16):
        kept = (kept + data)[-_MOST_OUTPUT:]
    return kept.decode("utf-8", "replace")


def _unproxied() -> Mapping[str, str]:
    """Variables with which no proxy is asked for this machine's own address."""
    names = [part for name in ("NO_PROXY", "no_proxy") for part in os.environ.get(name, "").split(",") if part]
    value = ",".join(dict.fromkeys([*names, "127.0.0.1", "localhost"]))
    return {"NO_PROXY": value, "no_proxy": value}


async def _kill_container(name: str) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        killer = await asyncio.create_subprocess_exec(
            "docker", "kill", name, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        await asyncio.wait_for(killer.wait(), _KILL_SECONDS)
