"""Processes of this machine."""

import psutil


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    found = (one.info["status"] for one in psutil.process_iter(["status"]) if one.pid == pid)
    return any(status != psutil.STATUS_ZOMBIE for status in found)
