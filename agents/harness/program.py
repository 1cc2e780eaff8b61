"""Programs that can be played as episodes: a Python callable, or a command line, optionally in a container.

A supervisor runs a command and ends all of its processes. Without a container, the command has the rights of the user
who started the training. A callable runs in a thread. At the deadline, an exception is raised in that thread, and the
callable's requests are refused. Not covered: a callable that blocks in C code, or that catches every exception, keeps
running in its thread.
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

#: runs a blocking call in a thread and returns its result
InThread = Callable[[Callable[[], str]], Coroutine[Any, Any, str]]
_MAX_OUTPUT = 1 << 20  #: number of bytes to keep of a command's output, counted from its end
_MAX_ARGUMENT = 100 << 10  #: bytes; longest prompt that is passed as an argument or an environment variable
_KILL_SECONDS = 10.0  #: time limit of ``docker kill``
_END_SECONDS = 5.0  #: time limit for a supervisor to end its processes, and to interrupt a callable
_REST_SECONDS = 1.0  #: time limit to read the remaining output after a process has ended


class ProgramFailed(AgentError):
    """The machine could not run a program."""


class NoAnswer(AgentError):
    """A program ended without an answer."""


class Ended(BaseException):
    """Raised in a callable after its episode has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    prompt: str  #: the task as text
    task_id: str
    seed: int  #: for the program's own randomness; differs between samples of a task
    base_url: str  #: URL of the OpenAI API; Anthropic's clients need this URL without ``/v1``
    api_key: str  #: unique to the episode; the server finds the episode by this key
    model: str

    @property
    def variables(self) -> dict[str, str]:
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
    async def run(self, assignment: Assignment, in_thread: InThread) -> str:
        """Return the final answer; if cancelled, end all processes and threads of the program.

        Raises:
            ProgramFailed: If the program could not be run.
            NoAnswer: If the program ended without an answer.
        """


class CallableProgram:
    """A Python callable or coroutine function whose return value is the answer.

    Args:
        name: ``MODULE:NAME``. If a parameter of the callable has the name of a field of ``Assignment``, the callable
            receives that field.

    Raises:
        UsageError: If the callable cannot be imported, or has another parameter without a default.
    """

    def __init__(self, name: str) -> None:
        module, _, attribute = name.partition(":")
        try:
            function = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            problem = f"expected program=MODULE:NAME of an importable callable, got {name!r}: {error}"
            raise UsageError(problem) from error
        self._call = function
        offered = {field.name for field in fields(Assignment)}
        parameters = inspect.signature(function).parameters.values()
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        needed = {p.name for p in named if p.default is p.empty}
        if missing := sorted(needed - offered):
            raise UsageError(
                f"{name} receives {', '.join(sorted(offered))} by name, but also has the parameters "
                f"{', '.join(missing)}; give them defaults"
            )
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._fields = offered if takes_all else offered & {p.name for p in parameters}

    async def run(self, assignment: Assignment, in_thread: InThread) -> str:
        arguments = {name: getattr(assignment, name) for name in self._fields}
        running = _RunningCall()

        def call() -> str:
            with running:
                answer = self._call(**arguments)
                return str(asyncio.run(_await(answer)) if inspect.isawaitable(answer) else answer)

        try:
            return await in_thread(call)
        except asyncio.CancelledError:
            # Call ``end`` in a thread of its own, because it may have to raise the exception many times.
            threading.Thread(target=running.end, name="turntree-end", daemon=True).start()
            raise
        except Exception as error:
            # The program is the user's code and may raise anything; in every case it gave no answer.
            raise NoAnswer(f"the program raised {describe(error)}") from error


class _RunningCall:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: int | None = None

    def __enter__(self) -> None:
        self._thread = threading.get_ident()

    def __exit__(self, *error: object) -> None:
        with self._lock:
            # Clear a pending exception, because the pool reuses this thread.
            _raise_in(self._thread, None)
            self._thread = None

    def end(self) -> None:
        # Raise the exception until the call ends, because some programs catch every exception.
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline:
            with self._lock:
                if self._thread is None:
                    return
                _raise_in(self._thread, Ended)
            time.sleep(0.05)


def _raise_in(thread: int | None, error: type[BaseException] | None) -> None:
    raised = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread or 0), raised)


class CommandProgram:
    """A command line that reads the prompt from stdin and writes its answer to stdout.

    Args:
        command: Command and arguments, in which ``{prompt}``, ``{task_id}`` and ``{seed}`` are replaced. A prompt that
            does not fit into an argument (it contains NUL, or is over 100 KiB) becomes ``-``. The environment variable
            ``TASK_PROMPT`` is then not set.
        image: Container image in which to run the command; ``None`` runs the command as a process.

    Raises:
        UsageError: If the command is empty, or ``image`` is set and Docker is not installed.
    """

    def __init__(self, command: str | Sequence[str], *, image: str | None = None) -> None:
        self._command = shlex.split(command) if isinstance(command, str) else [*command]
        self._image = image
        if not self._command:
            raise UsageError("command is empty; give a command line, for example 'python agent.py {prompt}'")
        if image is not None and shutil.which("docker") is None:
            raise UsageError(f"image={image!r} needs the command docker, which is not installed; leave image out")

    async def run(self, assignment: Assignment, in_thread: InThread) -> str:
        container = f"turntree-{uuid.uuid4().hex}"
        line, in_supervisor = self.line(assignment, container), self._image is None and sys.platform == "linux"
        report_reader, report_writer = os.pipe()
        try:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(supervised(line, report_writer) if in_supervisor else line),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env={**os.environ, **_without_proxy(), **assignment.variables},
                    pass_fds=(report_writer,),
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                raise ProgramFailed(f"{self._command[0]!r} cannot be run: {error}") from error
            finally:
                os.close(report_writer)
            try:
                out, err = await _communicate(process, assignment.prompt)
            finally:
                await self._end(process, container)
            report_text = os.read(report_reader, 4096).decode() if in_supervisor else ""
        finally:
            os.close(report_reader)
        if report_text.startswith(CANNOT):
            raise ProgramFailed(
                f"{self._command[0]!r} cannot be run: {report_text.splitlines()[0].removeprefix(CANNOT)}"
            )
        status = os.waitstatus_to_exitcode(int(report_text)) if report_text else process.returncode
        if status:
            last = " ".join(err.strip().splitlines()[-1:])
            raise NoAnswer(f"the program ended with status {status}: {last or 'it printed nothing'}")
        return out.strip()

    async def _end(self, process: asyncio.subprocess.Process, container: str) -> None:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
                # A process stopped by SIGSTOP acts on SIGTERM only after SIGCONT.
                process.send_signal(signal.SIGCONT)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), _END_SECONDS)
            if self._image is not None:
                await _kill_container(container)
        with contextlib.suppress(ProcessLookupError):
            # Kill the remaining processes of the group, even if the supervisor itself was killed.
            os.killpg(process.pid, signal.SIGKILL)

    def line(self, assignment: Assignment, container: str) -> list[str]:
        prompt = assignment.prompt if _fits(assignment.prompt) else "-"
        values = {"{prompt}": prompt, "{task_id}": assignment.task_id, "{seed}": str(assignment.seed)}
        line = [_PLACEHOLDER.sub(lambda match: values[match[0]], part) for part in self._command]
        if self._image is None:
            return line
        names = [argument for name in assignment.variables for argument in ("--env", name)]
        # The gateway listens on loopback, which a container can reach only through the host's network.
        options = ["--rm", "--interactive", "--network=host", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
        return ["docker", "run", *options, f"--name={container}", *names, self._image, *line]


_PLACEHOLDER = re.compile(r"\{(prompt|task_id|seed)\}")


async def _await(answer: Any) -> Any:
    return await answer


def _fits(prompt: str) -> bool:
    # Linux limits an argument or an environment variable to 128 KiB, and cuts it off at a NUL.
    return "\0" not in prompt and len(prompt.encode()) <= _MAX_ARGUMENT


async def _communicate(process: asyncio.subprocess.Process, prompt: str) -> tuple[str, str]:
    assert process.stdin is not None, "all three are pipes"
    assert process.stdout is not None
    assert process.stderr is not None
    outputs = bytearray(), bytearray()
    reading = asyncio.gather(_read_tail(process.stdout, outputs[0]), _read_tail(process.stderr, outputs[1]))
    try:
        # The process may have exited or closed its input; uvloop, which Ray installs, then raises RuntimeError.
        with contextlib.suppress(ConnectionError, RuntimeError):
            process.stdin.write(prompt.encode())
            process.stdin.close()
        await process.wait()
        # A grandchild may hold the pipes open; do not wait for it.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reading, _REST_SECONDS)
    finally:
        reading.cancel()
    out, err = (bytes(output).decode("utf-8", "replace") for output in outputs)
    return out, err


async def _read_tail(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while data := await stream.read(1 << 16):
        tail += data
        del tail[:-_MAX_OUTPUT]


def _without_proxy() -> Mapping[str, str]:
    # The gateway listens on loopback, which no proxy can reach.
    names = [part for name in ("NO_PROXY", "no_proxy") for part in os.environ.get(name, "").split(",") if part]
    value = ",".join(dict.fromkeys([*names, "127.0.0.1", "localhost"]))
    return {"NO_PROXY": value, "no_proxy": value}


async def _kill_container(name: str) -> None:
    with contextlib.suppress(OSError, TimeoutError):
        killer = await asyncio.create_subprocess_exec(
            "docker", "kill", name, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        await asyncio.wait_for(killer.wait(), _KILL_SECONDS)
