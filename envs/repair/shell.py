"""Run a command in the sandbox, in a folder of text files; return its output and the files that it leaves.

Invariant: everything that comes out of the sandbox is checked, because the command may have forged it. Only UTF-8 files
are kept: links, file modes, empty folders, other files and ``__pycache__`` are lost.
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
MOST_BYTES = 200_000  #: maximum size of all files together
REPORT_BYTES = 8 * MOST_BYTES  #: output that the sandbox must allow: JSON writes a character in at most six bytes
_SHOWN = 6_000
_TIME = re.compile(r"^(Ran \d+ tests?) in \d+\.\d+s$", re.MULTILINE)
_BEFORE = "; the files are as they were before"
#: Python code that runs first in the sandbox and writes the workspace to the sandbox's disk
WRITE_FILES = """
import json, os, sys
given = json.loads({given!r})
work = os.path.join(os.getcwd(), "work")
for path, text in given["files"].items():
    os.makedirs(os.path.dirname(os.path.join(work, path)), exist_ok=True)
    with open(os.path.join(work, path), "w", encoding="utf-8", newline="") as file:
        file.write(text)
"""
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
    text: str  #: output of the command, as shown to the model
    files: dict[str, str]  #: the workspace afterwards, text by path


def run_command(runner: CodeRunner, command: str, files: Mapping[str, str]) -> Ran:
    """Run a bash command on a workspace (text by path).

    ``runner`` must run fresh Python code and allow ``REPORT_BYTES`` of output.

    Raises:
        ToolError: If the command had to be stopped, or left an invalid workspace (see ``check_files``).
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
    """Return ``files`` if they are a valid workspace (text by relative path).

    If files were left out because they are too large, ``size`` is the number of bytes that the sandbox reports.

    Raises:
        ToolError: If there are too many files or bytes, a path outside the workspace, or text that UTF-8 cannot encode.
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
    # The duration of tests is removed, so that repeating a command gives the same text.
    half = _SHOWN // 2
    text, end, cut = str(report["text"])[:half], str(report["end"])[-half:], int(report["length"]) - _SHOWN
    text = _TIME.sub(r"\1", (f"{text}\n[... {cut} characters left out ...]\n{end}" if cut > 0 else text + end).rstrip())
    if report["left_out"]:
        text += f"\n(not kept, no text: {', '.join(map(str, report['left_out'][:9]))})"
    code = int(report["code"])
    return (f"{text}\n(exit code {code})" if code else text or "(no output)").lstrip("\n")
