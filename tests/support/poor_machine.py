"""Run code as on a machine without user namespaces and without Landlock."""

import ctypes
import os
import platform
import struct
import subprocess
import sys

from machine_speed import patience

_UNSHARE = {"x86_64": 272, "aarch64": 97}
SYSTEM_PYTHON = "/usr/bin/python3"  # every user may read it


def run_poorly(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", f"import poor_machine; poor_machine.refuse()\n{code}"]
    settings = {**os.environ, "PYTHONPATH": os.path.dirname(__file__), **environment}
    return subprocess.run(words, capture_output=True, text=True, timeout=patience(120), env=settings, check=False)


def refuse() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    program = [(0x20, 0, 0, 0)]  # load the call's number
    for number, error in ((_UNSHARE[platform.machine()], 1), (444, 38)):  # EPERM, and ENOSYS for Landlock
        program += [(0x15, 0, 1, number), (0x06, 0, 0, 0x50000 | error)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *s) for s in [*program, (0x06, 0, 0, 0x7FFF0000)]))
    filters = struct.pack("HxxxxxxQ", len(program) + 1, ctypes.addressof(code))
    assert libc.prctl(38, 1, 0, 0, 0) == libc.prctl(22, 2, filters, 0, 0) == 0  # no new privileges, and the filter
