"""CPU seconds by test file, with all processes that the tests start: hooks for a ``conftest.py``.

They are written where ``TURNTREE_CPU_SECONDS`` names a folder, one file a run of pytest, as `make test` asks for.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path

FOLDER = "TURNTREE_CPU_SECONDS"
BETWEEN = 0.5
"""Seconds between two looks within a file: a look reads /proc."""
TICKS = os.sysconf("SC_CLK_TCK")


def tree_seconds(root: int) -> float:
    """CPU seconds of a process, of its living descendants and of those that these have waited for."""
    children: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        pid = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(pid)
        seconds[pid] = sum(map(int, fields[11:15])) / TICKS
    total, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        total += seconds.get(pid, 0.0)
        waiting += children.get(pid, [])
    return total


class Account:
    """CPU seconds, given to the file whose test runs.

    A process that ends without its parent's waiting takes its seconds along: what was seen before stays counted.
    """

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self._file, self._seen, self._looked = "", 0.0, 0.0

    def look(self, file: str, *, at_once: bool = False) -> None:
        """Give what was used since the last look to the file that ran, and go on with ``file``."""
        now = time.monotonic()
        if file == self._file and not at_once and now - self._looked < BETWEEN:
            return
        seen = tree_seconds(os.getpid())
        self.files[self._file] += max(0.0, seen - self._seen)
        self._file, self._seen, self._looked = file, seen, now


ACCOUNT = Account()


def pytest_runtest_logstart(nodeid: str) -> None:
    if FOLDER in os.environ:
        ACCOUNT.look(nodeid.partition("::")[0])


def pytest_runtest_logreport() -> None:
    if FOLDER in os.environ:
        ACCOUNT.look(ACCOUNT._file)


def pytest_sessionfinish() -> None:
    if folder := os.environ.get(FOLDER):
        ACCOUNT.look("", at_once=True)
        Path(folder).mkdir(parents=True, exist_ok=True)
        found = {file or "imports": round(seconds, 2) for file, seconds in ACCOUNT.files.items()}
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(found))
