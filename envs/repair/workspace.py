"""Give the policy files to read, edit and run: a shell, an editor, a reader.

The files are kept as text in this process. They are on disk only while a command runs, in the sandbox's own folder.
Snapshots and forks of an episode therefore contain the files. A command that has to be stopped does not change them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from turntree.envs.errors import ToolError, nearest_hint
from turntree.envs.repair.shell import REPORT_BYTES, check_files, run_command
from turntree.envs.sandbox.python_sandbox import PythonSandbox
from turntree.envs.sandbox.settings import Isolation, SandboxLimits
from turntree.envs.tools.tool import tool
from turntree.envs.tools.toolset import Toolset

_LINES = 200  #: lines shown at once
_WIDTH = 200  #: characters shown of a line


def base_python() -> str:
    # The interpreter from which the virtual environment was made; it does not see the environment's packages.
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


class Workspace(Toolset):
    """Hold a folder of text files (``files``, text by path) with tools to change them."""

    def __init__(
        self, *, seconds: float = 10.0, isolation: Isolation | str = Isolation.AUTO, python: str | None = None
    ) -> None:
        """Choose the isolation.

        Args:
            seconds: Deadline of one command.
            isolation: How commands are isolated, see ``PythonSandbox``.
            python: The interpreter in the sandbox; ``None`` takes ``base_python()``.
        """
        self.files: dict[str, str] = {}
        self._settings: dict[str, Any] = {
            "limits": SandboxLimits(seconds=seconds, output_bytes=REPORT_BYTES),
            "isolation": isolation,
            "python": python or base_python(),
        }
        self._runner: PythonSandbox | None = None

    @tool
    def shell(self, command: str) -> str:
        """Run a command with bash in the workspace; changed, new and removed text files stay so.

        Args:
            command: For example grep -n def *.py, or python -m unittest

        Returns:
            Its output.
        """
        self._runner = self._runner or self.make_runner()
        ran = run_command(self._runner, command, self.files)
        self.files = ran.files
        return ran.text

    @tool
    def edit(self, path: str, old: str, new: str) -> str:
        """Replace a piece of text that stands in a file exactly once.

        Args:
            path: The file
            old: The text as it is, spaces and line breaks included
            new: The text that takes its place
        """
        text = self._text(path)
        count = text.count(old) if old else 0
        if count != 1:
            raise ToolError(
                f"old must stand in {path} exactly once, it stands there {count} times; "
                + ("give more of the lines around it" if count else "read the file and copy the text exactly")
            )
        self.files = check_files({**self.files, path: text.replace(old, new)})
        return f"Replaced in {path}, line {text[: text.index(old)].count(chr(10)) + 1}."

    @tool
    def read(self, path: str, first: int = 1, last: int | None = None) -> str:
        """Read lines of a file, with their numbers.

        Args:
            path: The file
            first: Number of the first line
            last: Number of the last line; the end of the file if it is left out
        """
        lines = self._text(path).splitlines()
        first, last = max(first, 1), len(lines) if last is None else min(last, len(lines))
        shown = lines[first - 1 : min(last, first + _LINES - 1)]
        if not shown:
            raise ToolError(f"{path} has the lines 1 to {len(lines)}, not {first} to {last}")
        text = "\n".join(f"{number} {line[:_WIDTH]}" for number, line in enumerate(shown, first))
        return text if first + len(shown) > last else f"{text}\n[... lines {first + len(shown)} to {last} ...]"

    def make_runner(self) -> PythonSandbox:
        return PythonSandbox(packages=False, **self._settings)

    def exposure(self) -> str:
        """Describe how a command could read the right programs; empty if it cannot, or if the caller allowed it.

        Raises:
            SandboxError: If commands cannot be confined here.
        """
        with self.make_runner() as runner:
            runner.confine()
            if runner.files:
                return runner.weakness() if runner.wanted is Isolation.AUTO else ""
            own = Path(__file__).parent
            if runner.shows(own):
                return (
                    f"the sandbox shows {own}, where the right programs are; install turntree in a virtual environment "
                    f"outside of the folders of {runner.python}"
                )
            return ""

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def _text(self, path: str) -> str:
        if path not in self.files:
            raise ToolError(f"there is no file {path!r}; {nearest_hint(path, sorted(self.files), 'the files are')}")
        return self.files[path]

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_runner": None, "files": dict(self.files)}
