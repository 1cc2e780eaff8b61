"""Framed pickles over a socket, between processes of this package only.

Invariant: a frame is read whole or not at all. Model text travels as string data inside a frame; the pickles
themselves are written by this package's own processes.
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

_HEADER = struct.Struct("!I")


def send(channel: socket.socket, message: Any) -> None:
    """Send one message.

    Raises:
        OSError: The other side is gone.
    """
    payload = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    channel.sendall(_HEADER.pack(len(payload)) + payload)


def receive(channel: socket.socket) -> Any:
    """Receive one message.

    Raises:
        EOFError: The other side is gone.
    """
    (length,) = _HEADER.unpack(_exactly(channel, _HEADER.size))
    return pickle.loads(_exactly(channel, length))


def _exactly(channel: socket.socket, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        try:
            part = channel.recv(length - len(parts))
        except ConnectionError as gone:
            raise EOFError("the other side is gone") from gone
        if not part:
            raise EOFError("the other side is gone")
        parts += part
    return bytes(parts)
