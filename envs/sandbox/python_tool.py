"""The tool ``python``: the policy's own code in a sandbox (``turntree.envs.sandbox.python_sandbox``).

The result is the printed output. If the code raises, or exceeds a deadline or a limit, the model gets an error with the
output so far. Text on the error stream alone is no error. If the sandbox itself fails, the episode fails.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol, Self

from turntree.envs.errors import ToolError
from turntree.envs.sandbox.python_sandbox import PythonSandbox
from turntree.envs.sandbox.settings import CodeResult, Isolation, SandboxLimits
from turntree.envs.tools.tool import tool
from turntree.envs.tools.toolset import Toolset


class CodeRunner(Protocol):
    def run(self, code: str) -> CodeResult:
        """Run the code and wait until it ends."""

    def close(self) -> None:
        """End all processes."""


class PythonTool(Toolset):
    """Lets a policy run Python code: put a ``PythonTool`` into an environment's ``toolsets``.

    With ``session``, variables persist between the calls of an episode. A snapshot then stores the code of the earlier
    calls, and a restored episode reruns this code before its next call.
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
        """Configure the sandbox; the arguments are those of ``PythonSandbox``."""
        self._settings: dict[str, Any] = {
            "limits": limits,
            "isolation": isolation,
            "session": session,
            "packages": packages,
            "python": python,
        }
        self._runner: CodeRunner | None = None
        self._cells: list[str] = []

    @tool
    def python(self, code: str) -> str:
        """Run Python code and return what it prints, and the value of its last line.

        Args:
            code: Python source, for example print(sum(range(10)))

        Returns:
            The output.
        """
        runner = self._runner or self._begin()
        result = runner.run(code)
        if self._settings["session"]:
            self._cells.append(code)
        text = result.to_text()
        if result.ok:
            return text or "(no output)"
        if self._settings["session"] and result.status != "error":
            self._cells.clear()
            text += "\nThe session was restarted: its variables are lost."
        raise ToolError(text)

    def make_runner(self) -> CodeRunner:
        """Create the code runner; override this method to use another kind of sandbox."""
        return PythonSandbox(**self._settings)

    def exposure(self) -> str:
        """Describe how the code could read this machine's files; empty if the caller named an isolation, not ``auto``.

        Raises:
            SandboxError: If code cannot be confined here.
        """
        runner = self.make_runner()
        if not isinstance(runner, PythonSandbox):
            return ""
        with runner:
            runner.confine()
            return runner.weakness() if runner.files and runner.wanted is Isolation.AUTO else ""

    def fresh(self) -> Self:
        copy = super().fresh()
        copy._cells.clear()
        return copy

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def _begin(self) -> CodeRunner:
        self._runner = self.make_runner()
        for cell in self._cells:
            self._runner.run(cell)
        return self._runner

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_runner": None, "_cells": list(self._cells)}
