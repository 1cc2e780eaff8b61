"""Processes of this machine."""

import signal

import psutil


def heed_hangups() -> None:
    """As ``preexec_fn``: end by SIGHUP, also where the tests ignore it, as ``nohup`` makes them."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    found = (one.info["status"] for one in psutil.process_iter(["status"]) if one.pid == pid)
    return any(status != psutil.STATUS_ZOMBIE for status in found)
