"""End a training's processes as soon as the launcher has ended, even after ``kill -9``.

``python -S guard.py FOLDER`` reads session ids from standard input, one per line. When the input ends, the guard kills
all processes of these sessions, removes FOLDER and exits. The guard runs in its own session and keeps inherited
descriptors (for example a lock) open until all processes of the training have ended. This module needs only the
standard library.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

_PROC = Path("/proc")
_ZOMBIE = "Z"
_POLL_SECONDS = 0.02


class Guard:
    """Kill all processes in the sessions of the watched leaders on exit, at the latest when this process ends."""

    def __init__(self, folder: Path, *, inherited: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(inherited,),
            start_new_session=True,
        )

    def watch(self, leader: int) -> None:
        assert self._process.stdin is not None, "started with a pipe"
        self._process.stdin.write(f"{leader}\n".encode())
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None, "started with a pipe"
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()


def end_sessions(leaders: set[int]) -> None:
    """Kill the sessions' processes until none is left; without ``/proc``, kill the leaders' process groups."""
    if not _PROC.is_dir():
        for leader in leaders:
            with suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)
        return
    while living := [pid for pid in map(int, filter(str.isdigit, os.listdir(_PROC))) if _session(pid) in leaders]:
        for pid in living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)


def _session(pid: int) -> int | None:
    try:
        state, _, _, session = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[:4]
    except (OSError, ValueError):
        return None
    return None if state == _ZOMBIE else int(session)


def main(folder: str) -> None:
    end_sessions({int(line) for line in sys.stdin})
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1])
