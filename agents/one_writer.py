"""A file that one process writes at a time."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from turntree.agents.errors import UsageError


class OneWriter:
    """The right to write a file, until it is closed or the process ends; kept in a file beside it."""

    def __init__(self, path: Path) -> None:
        """Take the right.

        Args:
            path: The file; its folder is made.

        Raises:
            UsageError: If another process has it; the message says which.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._beside = path.with_name(f".{path.name}.lock")
        while True:
            self._descriptor = os.open(self._beside, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.read(self._descriptor, 200).decode(errors="replace") or "another process"
                os.close(self._descriptor)
                raise UsageError(f"{path} is being written by {holder}; wait for it, or name another file") from None
            if self._beside.exists() and self._beside.stat().st_ino == os.fstat(self._descriptor).st_ino:
                break
            os.close(self._descriptor)  # its last holder has just taken it away
        os.truncate(self._descriptor, 0)
        os.write(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())

    def close(self) -> None:
        """Give it back; closing twice does nothing."""
        if self._descriptor >= 0:
            self._beside.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1
