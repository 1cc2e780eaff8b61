import signal

import psutil


def heed_hangups() -> None:
    # A ``preexec_fn``: the tests ignore SIGHUP when they run under ``nohup``.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def alive(pid: int) -> bool:
    found = (one.info["status"] for one in psutil.process_iter(["status"]) if one.pid == pid)
    return any(status != psutil.STATUS_ZOMBIE for status in found)
