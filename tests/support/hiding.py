"""A program whose processes hide in every known way, each as ``sleep 600.MARK``; it then answers or waits."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

_SUBREAPER, _NAME = 36, 15


def alive(mark: str) -> list[int]:
    """Return the ids of this machine's processes with the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"600.{mark}".encode() in words:
            found.append(int(folder.name))
    return found


def main() -> None:
    mark, then = sys.argv[1:]
    sleep = ["sleep", f"600.{mark}"]
    control = ctypes.CDLL(None).prctl

    def beside(work: Callable[[], object], *, daemon: bool = False) -> None:
        # In a child, or in a grandchild whose parent has exited.
        if os.fork():
            os.wait() if daemon else None
            return
        if daemon and os.fork():
            os._exit(0)
        work()
        os.execvp(sleep[0], sleep)

    def closed() -> None:
        os.setsid()
        os.closerange(0, 1024)

    def bare() -> None:
        os.chdir("/")
        os.execve("/bin/sleep", sleep, {})

    def stopped() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    def deaf() -> None:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    def comes_again() -> None:
        os.setsid()
        while True:
            subprocess.call(sleep)

    def adopts() -> None:
        control(_SUBREAPER, 1, 0, 0, 0)
        beside(os.setsid, daemon=True)

    beside(lambda: None)
    beside(deaf)
    beside(os.setsid)
    beside(lambda: None, daemon=True)
    beside(os.setsid, daemon=True)
    beside(closed, daemon=True)
    beside(bare, daemon=True)
    beside(lambda: control(_NAME, b"kthreadd", 0, 0, 0), daemon=True)
    beside(lambda: os.setpgid(0, 0))
    beside(stopped, daemon=True)
    beside(adopts, daemon=True)
    beside(comes_again, daemon=True)
    subprocess.Popen(["unshare", "--fork", "--pid", *sleep], start_new_session=True, stderr=subprocess.DEVNULL)
    for _ in range(1000):
        if len(alive(mark)) >= 12:
            break
        time.sleep(0.01)
    if then == "waits":
        time.sleep(600)
    print("#### 4", flush=True)


if __name__ == "__main__":
    main()
