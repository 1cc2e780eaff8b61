"""Ends vLLM's engine process when the server that started it is killed.

The engine process of vLLM (0.24, 0.28) does not notice that its server has died, although vLLM's workers notice when
their engine dies. A restarted server would find the accelerator's memory still taken. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

SERVER = "TURNTREE_VLLM_SERVER"  #: Environment variable with the server's process id; without it nothing changes.
_PR_SET_PDEATHSIG = 1


def announce_server() -> None:
    """Make the engines that this process starts end when this process ends."""
    os.environ[SERVER] = str(os.getpid())


def end_with_server() -> None:
    """Make this engine process end when its server ends."""
    server = os.environ.get(SERVER)
    # The variable is inherited by all descendants; only a direct child of the server is its engine.
    if server is None or str(os.getppid()) != server or sys.platform != "linux":
        return
    # The kernel sends SIGKILL when the thread that started this process ends.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if str(os.getppid()) != server:  # the server ended before prctl
        os._exit(1)
