"""Stand in for a Python interpreter: ``python fork_client.py SOCKET SCRIPT [ARGUMENT]...``.

The client asks the fork server at SOCKET for a fork that runs the script with the client's environment, folder, signals
and streams. The client exits with the fork's status. If no server answers, the client runs the script itself. This
module needs only the standard library, so that it can start without packages (``python -S``).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence

STREAMS = (0, 1, 2)
_LENGTH = struct.Struct("!I")


def send_message(connection: socket.socket, message: bytes, descriptors: Sequence[int]) -> None:
    """Send bytes and open files over a connected Unix socket."""
    socket.send_fds(connection, [_LENGTH.pack(len(message))], descriptors)
    connection.sendall(message)


def receive_message(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a message of ``send_message``: the bytes, and a descriptor for each standard stream."""
    head, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, len(STREAMS))
    if len(head) != _LENGTH.size or len(descriptors) != len(STREAMS):
        raise ConnectionError(f"expected a length and {len(STREAMS)} files, got {head!r} and {len(descriptors)}")
    (length,) = _LENGTH.unpack(head)
    message = b""
    while len(message) < length:
        part = connection.recv(length - len(message))
        if not part:
            raise ConnectionError("the client closed the connection")
        message += part
    return message, descriptors


def _fork_elsewhere(path: str, argv: Sequence[str]) -> int | None:
    # Wait for the fork and return its exit status, negative after a signal; ``None`` if no server answers.
    request = {
        "argv": list(argv),
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "group": os.getpgrp(),
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
            send_message(connection, json.dumps(request).encode(), STREAMS)
            if not connection.recv(1):
                return None
        except OSError:
            return None
        answer = connection.recv(64)
        return int(answer) if answer else 1


def main(arguments: Sequence[str]) -> None:
    path, *argv = arguments
    status = _fork_elsewhere(path, argv)
    if status is None:
        os.execv(sys.executable, [sys.executable, *argv])
    if status < 0:  # a signal ended the fork
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])
