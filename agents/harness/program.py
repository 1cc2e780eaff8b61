"""The programs that can be episodes: a Python callable, or a command line, in a container if it is to be.

A command runs below a supervisor, with which all that it began ends, and has the rights of whoever started the
training unless it runs in a container. A callable runs in a thread of this process: at the deadline an exception is
raised in it, and it is refused every further turn. Not covered: a callable that waits outside of Python, or goes on
whatever is raised, keeps its thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import inspect
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from turntree.agents.errors import AgentError, UsageError
from turntree.agents.harness.supervisor import CANNOT, supervised
from turntree.envs.failure import describe

InThread = Callable[[Callable[[], str]], Coroutine[Any, Any, str]]
"""The result of a call that may block."""
_MOST_OUTPUT = 1 << 20
"""Bytes of a command's output that are kept, the last ones."""
_MOST_ARGUMENT = 100 << 10
"""Most bytes of a prompt in an argument or a variable."""
_KILL_SECONDS = 10.0
"""Time in which a killed container ends, or is given up."""
_END_SECONDS = 5.0
"""Time in which a supervisor ends what it has, and in which a callable is asked to end."""
_REST_SECONDS = 1.0
"""Time in which the rest of the output of an ended process arrives."""


class ProgramFailed(AgentError):
    """A program could not be run: the machine's fault."""


class NoAnswer(AgentError):
    """A program ended by itself without an answer: its own fault."""


class Ended(BaseException):
    """Raised in a callable for which nobody waits any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a program is given."""

    prompt: str
    """The task, as text."""
    task_id: str
    seed: int
    """Seed of the episode, for what the program itself draws; samples of one task have different ones."""
    base_url: str
    """Where an OpenAI client finds the policy; one of Anthropic's finds it without the ``/v1``."""
    api_key: str
    """Names the episode."""
    model: str

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
            "TASK_ID": self.task_id,
            "TASK_SEED": str(self.seed),
            **({"TASK_PROMPT": self.prompt} if _fits(self.prompt) else {}),
        }


class Program(Protocol):
    """Something that answers an assignment."""

    async def run(self, given: Assignment, in_thread: InThread) -> str:
        """The final answer. Cancelled, it ends what it began.

        Raises:
            ProgramFailed: If it could not be run.
            NoAnswer: If it ended without one.
        """


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
            problem = f"program takes MODULE:NAME of a callable that can be imported, got {name!r}: {error}"
            raise UsageError(problem) from error
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
        running = _RunningCall()

        def call() -> str:
            with running:
                answer = self._call(**arguments)
                return str(asyncio.run(_awaited(answer)) if inspect.isawaitable(answer) else answer)

        try:
            return await in_thread(call)
        except asyncio.CancelledError:
            threading.Thread(target=running.end, name="turntree-end", daemon=True).start()
            raise
        except Exception as error:  # of somebody else's program: whatever it is, it has no answer
            raise NoAnswer(f"the program raised {describe(error)}") from error


class _RunningCall:
    """A call in a thread, in which an exception can be raised from another one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None

    def __enter__(self) -> None:
        self._thread = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            _raise_in(self._thread, None)  # what was not raised yet is not for whatever the thread does next
            self._thread = None

    def end(self) -> None:
        """Raise ``Ended`` in it until it ends; some programs catch everything."""
        until = time.monotonic() + _END_SECONDS
        while time.monotonic() < until:
            with self._lock:
                if self._thread is None:
                    return
                _raise_in(self._thread, Ended)
            time.sleep(0.05)


def _raise_in(thread: int | None, error: type[BaseException] | None) -> None:
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), raised)


class CommandProgram:
    """A command line: the prompt is its standard input, its answer what it writes to standard output.

    Args:
        command: The command and its arguments, in which ``{prompt}``, ``{task_id}`` and ``{seed}`` are filled in. A
            prompt that no argument can be, as it has a NUL or 100 KiB, is ``-``, and in no variable.
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
        line, alone = self.line(given, container), self._image is None and sys.platform == "linux"
        heard, report = os.pipe()
        try:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(supervised(line, report) if alone else line),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env={**os.environ, **_unproxied(), **given.variables},
                    pass_fds=(report,),
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise ProgramFailed(f"{self._command[0]!r} cannot be run: {error}") from error
            finally:
                os.close(report)
            try:
                out, err = await _conversation(process, given.prompt)
            finally:
                await self._end(process, container)
            told = os.read(heard, 4096).decode() if alone else ""
        finally:
            os.close(heard)
        if told.startswith(CANNOT):
            raise ProgramFailed(f"{self._command[0]!r} cannot be run: {told.splitlines()[0].removeprefix(CANNOT)}")
        status = os.waitstatus_to_exitcode(int(told)) if told else process.returncode
        if status:
            last = " ".join(err.strip().splitlines()[-1:])
            raise NoAnswer(f"the program ended with status {status}: {last or 'it printed nothing'}")
        return out.strip()

    async def _end(self, process: asyncio.subprocess.Process, container: str) -> None:
        """End what still runs, and wait until it is gone."""
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
                process.send_signal(signal.SIGCONT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _END_SECONDS)
            if self._image is not None:
                await _kill_container(container)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def line(self, given: Assignment, container: str) -> list[str]:
        """The command line, in a container of this name if there is an image."""
        prompt = given.prompt if _fits(given.prompt) else "-"
        filled = {"{prompt}": prompt, "{task_id}": given.task_id, "{seed}": str(given.seed)}
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


def _fits(prompt: str) -> bool:
    """Whether a prompt can be an argument and a variable: Linux has 128 KiB for each, and ends them at a NUL."""
    return "\0" not in prompt and len(prompt.encode()) <= _MOST_ARGUMENT


async def _conversation(process: asyncio.subprocess.Process, prompt: str) -> tuple[str, str]:
    """What a process writes to standard output and error until it ends, given the prompt."""
    assert process.stdin is not None, "all three are pipes"
    assert process.stdout is not None
    assert process.stderr is not None
    written = bytearray(), bytearray()
    reading = asyncio.gather(_tail(process.stdout, written[0]), _tail(process.stderr, written[1]))
    try:
        # It may have ended, or closed its input; uvloop, which Ray brings, says so by a RuntimeError.
        with contextlib.suppress(ConnectionError, RuntimeError):
            process.stdin.write(prompt.encode())
            process.stdin.close()
        await process.wait()
        with contextlib.suppress(TimeoutError):  # somebody else, who has its pipes, is not waited for
            await asyncio.wait_for(reading, _REST_SECONDS)
    finally:
        reading.cancel()
    out, err = (bytes(one).decode("utf-8", "replace") for one in written)
    return out, err


async def _tail(stream: asyncio.StreamReader, kept: bytearray) -> None:
    while data := await stream.read(1 << 16):
        kept += data
        del kept[:-_MOST_OUTPUT]


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
