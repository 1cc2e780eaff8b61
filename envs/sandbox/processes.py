"""The processes below this one, as /proc shows them. Loaded inside of the sandbox too."""

from __future__ import annotations

import contextlib
import os
import signal
import time

_PATIENCE = 10.0
"""Seconds within which killed processes must be gone."""


def descendants(root: int) -> list[int]:
    """Process ids of all children of ``root``, and theirs."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                parent = int(stat.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError):
            continue
        children.setdefault(parent, []).append(int(name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def private_bytes(pid: int) -> int:
    """Memory that a process does not share with a file; 0 where it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as statm:
            fields = statm.read().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def kill_descendants() -> bool:
    """Kill all descendants of this process and collect them; it must be the one that adopts orphans.

    Returns:
        Whether all are gone.
    """
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(0.001)
    return False
