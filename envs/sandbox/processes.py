"""The descendants of the calling process, read from /proc. Also loaded inside the sandbox."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import stat
import time
from collections.abc import Iterable, Iterator

_PATIENCE = 10.0  #: seconds to wait until killed processes are gone, or until signalled processes have stopped
# Memory lines of /proc/PID/status, and of /proc/PID/smaps_rollup.
_HELD = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"HugetlbPages:")
_PARTS = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:", b"Private_Hugetlb:", b"Shared_Hugetlb:")


def descendants(root: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        if fields := _stat(f"/proc/{name}/stat"):
            children.setdefault(int(fields[1]), []).append(int(name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def holds_more(pids: Iterable[int], bound: int) -> bool:
    """Return whether processes together hold more than ``bound`` bytes of memory (RAM and swap, no mapped files).

    Pages shared by several processes count once. The exact sum is expensive, so it is computed only if a cheap upper
    bound exceeds ``bound``.
    """
    # /proc/PID/smaps_rollup is exact but slow, because the kernel visits every page. /proc/PID/status is fast, but
    # counts a shared page once per process.
    pids = list(pids)
    each = [_kilobytes(f"/proc/{pid}/status", _HELD) or 0 for pid in pids]
    if sum(each) << 10 <= bound:
        return False
    parts = (_kilobytes(f"/proc/{pid}/smaps_rollup", _PARTS) for pid in pids)
    return sum(held if part is None else part for part, held in zip(parts, each, strict=True)) << 10 > bound


def _kilobytes(path: str, names: tuple[bytes, ...]) -> int | None:
    # Sums the numbers of the lines that begin with one of ``names``. Returns 0 if the process is gone, and None if the
    # file may not be read or lacks these lines.
    try:
        with open(path, "rb") as file:
            lines = file.readlines()
    except PermissionError:
        return None
    except OSError:
        return 0
    found = [int(line.split()[1]) for line in lines if line.startswith(names)]
    return sum(found) if found or not lines else None


def files_hold_more(folder: str, pids: Iterable[int], bound: int, *, count: int) -> bool:
    """Return whether the folder's files and the processes' open deleted files exceed the limits on bytes or files."""
    sizes: dict[tuple[int, int], int] = {}  # by device and inode, so that hard links count once
    for found in itertools.chain(_lying_in(folder), *map(_open_without_name, pids)):
        sizes[found.st_dev, found.st_ino] = found.st_blocks * 512
        if len(sizes) > count:
            return True
    return sum(sizes.values()) > bound


def _lying_in(folder: str) -> Iterator[os.stat_result]:
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                yield os.lstat(f"{root}/{name}")


def _open_without_name(pid: int) -> Iterator[os.stat_result]:
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found = os.stat(f"/proc/{pid}/fd/{name}")
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                    yield found


def freeze_descendants() -> bool:
    """Stop all descendants of this process with all their threads; return whether all are stopped."""
    end = time.monotonic() + _PATIENCE
    stopped: list[int] = []
    while time.monotonic() < end:
        below = descendants(os.getpid())
        _signal(below, signal.SIGSTOP)
        if not all(_is_still(pid) for pid in below):
            stopped = []
        elif below == stopped:  # the same list twice: no process was forked while its parent was being stopped
            return True
        else:
            stopped = below
        time.sleep(0.0005)
    return False


def thaw_descendants() -> None:
    _signal(descendants(os.getpid()), signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    return _stat(f"/proc/{pid}/stat")[:1] == [b"T"]


def ticks(pids: Iterable[int]) -> int:
    """Return the CPU time of processes in clock ticks; processes that are gone count as 0."""
    return sum(sum(map(int, _stat(f"/proc/{pid}/stat")[11:13])) for pid in pids)


def _is_still(pid: int) -> bool:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return True
    return all((_stat(f"/proc/{pid}/task/{thread}/stat") or [b"X"])[0] in b"TtZX" for thread in threads)


def _stat(path: str) -> list[bytes]:
    # Returns the fields after the process's name, which may contain blanks and parentheses; the first is the state.
    # Empty if the process is gone.
    try:
        with open(path, "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return []


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def kill_descendants() -> bool:
    """Kill and reap all descendants; return whether all are gone. The caller must be a subreaper (adopt orphans)."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        _signal(descendants(os.getpid()), signal.SIGKILL)
        try:
            # Reap dead children, which would otherwise stay in the list. waitpid raises ChildProcessError when no child
            # is left.
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(0.001)
    return False
