"""The end of vLLM's engine when the server that started it is killed.

vLLM (0.24, 0.28) starts its engine as a process that never notices the end of its server (its workers notice that of
the engine). A server that is killed and started again would find the memory of its accelerator taken. Linux alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SERVER = "TURNTREE_VLLM_SERVER"
"""Variable with the id of the server's process. Without it nothing changes."""
_PR_SET_PDEATHSIG = 1


def announce_server() -> None:
    """In a server, before it starts vLLM: let the engine end with this process."""
    os.environ[SERVER] = str(os.getpid())


def end_with_server() -> None:
    """In a process of vLLM: if a server started it, let the kernel end it with the server, or with the thread of it
    that started this process."""
    server = os.environ.get(SERVER)
    if server is None or str(os.getppid()) != server or sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if str(os.getppid()) != server:  # it ended meanwhile
        os._exit(1)
