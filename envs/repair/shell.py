"""A command in a folder of text files, run in the sandbox: what it says and what it leaves behind.

Invariant: what comes out of the sandbox is checked before it is believed, for the command may have written it. Not
kept are links, modes, empty folders, files that are not UTF-8 and ``__pycache__``.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turntree.envs.errors import ToolError
from turntree.envs.sandbox.python_tool import CodeRunner

MOST_FILES = 100
"""Most files of a workspace."""
MOST_BYTES = 200_000
"""Most bytes of all files together."""
REPORT_BYTES = 8 * MOST_BYTES
"""Output of the sandbox that a report may need: JSON writes a character in six bytes at most."""
_SHOWN = 6_000
_TIME = re.compile(r"^(Ran \d+ tests?) in \d+\.\d+s$", re.MULTILINE)
_BEFORE = "; the files are as they were before"
WRITE_FILES = """
import json, os, sys
given = json.loads({given!r})
work = os.path.join(os.getcwd(), "work")
for path, text in given["files"].items():
    os.makedirs(os.path.dirname(os.path.join(work, path)), exist_ok=True)
    with open(os.path.join(work, path), "w", encoding="utf-8", newline="") as file:
        file.write(text)
"""
"""Begins what runs in the sandbox: the files of a workspace on its disk."""
_RUN = """
import shutil, subprocess
os.makedirs(work, exist_ok=True)
programs = os.path.join(os.getcwd(), "programs")
os.mkdir(programs)
for name in ("python", "python3"):
    os.symlink(sys.executable, os.path.join(programs, name))
environment = {**os.environ, "PATH": programs + ":" + os.environ["PATH"], "PYTHONHASHSEED": "0"}
with open("output", "w+b") as output:
    command = [shutil.which("bash") or "/bin/sh", "-c", given["command"]]
    streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
    code = subprocess.run(command, cwd=work, env=environment, **streams).returncode
    output.seek(0)
    text = output.read().decode("utf-8", "replace").replace(work + "/", "")
files, left_out, size = {}, [], 0
for folder, folders, names in os.walk(work):
    folders[:] = sorted(name for name in folders if name != "__pycache__")
    for path in (os.path.join(folder, name) for name in sorted(names)):
        if os.path.islink(path) or not os.path.isfile(path) or size > given["most"]:
            continue
        with open(path, "rb") as file:
            data = file.read(given["most"] + 1)
        path = os.path.relpath(path, work)
        size += len(path) + len(data)
        try:
            files[path] = data.decode()
        except UnicodeDecodeError:
            left_out.append(path)
first, end = text[:given["shown"]], text[given["shown"]:][-given["shown"]:]
result = {"code": code, "text": first, "end": end, "length": len(text), "size": size, "left_out": left_out[:9]}
print("\\n" + json.dumps({**result, "files": files if size <= given["most"] else {}}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a command did."""

    text: str
    """What the model is shown."""
    files: dict[str, str]
    """The workspace after it, text by path."""


def run_command(runner: CodeRunner, command: str, files: Mapping[str, str]) -> Ran:
    """Run a command where the files are.

    Args:
        runner: Runs Python code afresh, with room for ``REPORT_BYTES`` of output.
        command: For bash.
        files: The workspace, text by path.

    Raises:
        ToolError: If the command did not end by itself, or what it left is no workspace.
        SandboxError: If the sandbox failed.
    """
    given = {"command": command, "files": dict(files), "most": MOST_BYTES, "shown": _SHOWN // 2}
    result = runner.run(WRITE_FILES.format(given=json.dumps(given)) + _RUN)
    if not result.ok:
        lines = result.error.strip().splitlines() or ["it was ended"]
        raise ToolError(f"the command failed: {lines[-1]}{_BEFORE}")
    try:
        report = json.loads(result.stdout.rstrip("\n").rpartition("\n")[2])
        return Ran(text=_shown(report), files=check_files(report["files"], size=int(report["size"])))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ToolError(f"the command destroyed the report of what it did{_BEFORE}") from error


def check_files(files: Any, *, size: int = 0) -> dict[str, str]:
    """A workspace, if it is one.

    Args:
        files: Text by path, relative to the workspace.
        size: Their reported bytes, where they are left out because they are too many.

    Raises:
        ToolError: If it has too many files or bytes, a path that leads out of it, or text that UTF-8 does not have.
    """
    counted = 0
    for path, text in files.items():
        if posixpath.normpath(path) != path or path.startswith(("/", "..")):
            raise ToolError(f"{path!r} is no path in the workspace{_BEFORE}")
        try:
            counted += len(path.encode()) + len(text.encode())
        except UnicodeEncodeError:
            raise ToolError(f"the text of {path!r} is no UTF-8{_BEFORE}") from None
    if len(files) > MOST_FILES or max(counted, size) > MOST_BYTES:
        raise ToolError(f"the workspace has room for {MOST_FILES} files and {MOST_BYTES} bytes{_BEFORE}")
    return dict(files)


def _shown(report: Mapping[str, Any]) -> str:
    """A command's output without the duration of tests, so that the same run prints the same twice."""
    half = _SHOWN // 2
    text, end, cut = str(report["text"])[:half], str(report["end"])[-half:], int(report["length"]) - _SHOWN
    text = _TIME.sub(r"\1", (f"{text}\n[... {cut} characters left out ...]\n{end}" if cut > 0 else text + end).rstrip())
    if report["left_out"]:
        text += f"\n(not kept, no text: {', '.join(map(str, report['left_out'][:9]))})"
    code = int(report["code"])
    return (f"{text}\n(exit code {code})" if code else text or "(no output)").lstrip("\n")
