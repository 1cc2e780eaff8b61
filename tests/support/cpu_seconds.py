"""CPU seconds by test file, with all processes that the tests start: hooks for a ``conftest.py``.

They are written where ``TURNTREE_CPU_SECONDS`` names a folder, one file a run of pytest, as `make test` asks for.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

FOLDER = "TURNTREE_CPU_SECONDS"
BETWEEN = 0.5
"""Seconds between two looks within a file: a look reads /proc."""
TICKS = os.sysconf("SC_CLK_TCK")


def seconds_of(marked: Callable[[int], bool]) -> float:
    """CPU seconds of the living processes that are ``marked``, and of those that these have waited for."""
    total = 0.0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            if marked(int(path.parent.name)):
                total += sum(map(int, path.read_text(errors="replace").rpartition(")")[2].split()[11:15])) / TICKS
        except OSError:  # it has ended, or is another user's
            continue
    return total


@functools.cache
def is_ours(pid: int) -> bool:
    """Whether a process inherited this one's folder, whoever its parent is by now: Ray's and forks are others'."""
    mark = f"{FOLDER}={os.environ.get(FOLDER)}".encode()
    return pid == os.getpid() or mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


class Account:
    """CPU seconds, given to the file whose test runs.

    A process that ends without its parent's waiting takes its seconds along: what was seen of them stays counted, and
    between the reports of two tests nobody looks. Ray's workers are such, so trainings have too little.
    """

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self._file, self._looked = "", 0.0
        self._seen = seconds_of(lambda pid: pid != os.getpid() and is_ours(pid))  # left by an earlier run

    def look(self, file: str, *, at_once: bool = False) -> None:
        """Give what was used since the last look to the file that ran, and go on with ``file``."""
        now = time.monotonic()
        if file == self._file and not at_once and now - self._looked < BETWEEN:
            return
        seen = seconds_of(is_ours)
        self.files[self._file] += max(0.0, seen - self._seen)
        self._file, self._seen, self._looked = file, seen, now


ACCOUNT = Account() if FOLDER in os.environ else None


def pytest_runtest_logstart(nodeid: str) -> None:
    if ACCOUNT:
        ACCOUNT.look(nodeid.partition("::")[0])


def pytest_runtest_logreport(report: Any) -> None:
    if ACCOUNT:
        ACCOUNT.look(report.nodeid.partition("::")[0])


def pytest_sessionfinish() -> None:
    if ACCOUNT:
        folder = os.environ[FOLDER]
        ACCOUNT.look("", at_once=True)
        Path(folder).mkdir(parents=True, exist_ok=True)
        found = {file or "imports": round(seconds, 2) for file, seconds in ACCOUNT.files.items()}
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(found))
