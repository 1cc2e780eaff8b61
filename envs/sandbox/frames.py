"""Length-prefixed JSON messages (frames) over file descriptors, the protocol between the sandbox's processes.

Imports nothing else from turntree, because this module is also loaded inside the sandbox.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

_HEADER = struct.Struct("!I")
_MAX_BYTES = 1 << 28  # maximum size of messages between trusted processes


class Closed(Exception):
    """The other process has closed the descriptor, or sent something that is not a frame."""


class Collector:
    """Collects one message that arrives in pieces from an untrusted process."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._data = bytearray()

    def take(self, data: bytes) -> dict[str, Any] | None:
        """Add received bytes and return the message once it is complete; bytes after it are dropped.

        Raises:
            Closed: If the data are not a message, or the message is longer than the maximum.
        """
        self._data += data
        if len(self._data) < _HEADER.size:
            return None
        length = _length(self._data, self._max_bytes)
        whole = self._data[_HEADER.size : _HEADER.size + length]
        return _message(whole) if len(whole) == length else None


def pack(message: dict[str, Any]) -> bytes:
    payload = json.dumps(message).encode()
    return _HEADER.pack(len(payload)) + payload


def write(descriptor: int, message: dict[str, Any]) -> None:
    data = memoryview(pack(message))
    while data:
        data = data[os.write(descriptor, data) :]


def read(descriptor: int) -> dict[str, Any]:
    return _message(_exactly(descriptor, _length(_exactly(descriptor, _HEADER.size), _MAX_BYTES)))


def _length(data: bytes | bytearray, max_bytes: int) -> int:
    (length,) = _HEADER.unpack_from(data)
    if length > max_bytes:
        raise Closed(f"a message of {length} bytes")
    return int(length)


def _message(data: bytes | bytearray) -> dict[str, Any]:
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Closed(f"not JSON: {error}") from error
    if not isinstance(message, dict):
        raise Closed("not an object")
    return message


def _exactly(descriptor: int, length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = os.read(descriptor, length - len(parts))
        if not part:
            raise Closed("end of file")
        parts += part
    return bytes(parts)
