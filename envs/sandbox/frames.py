"""Length-prefixed JSON over file descriptors; the parts of the sandbox speak it.

Imports nothing of the project: it is loaded inside of the sandbox too.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

_HEADER = struct.Struct("!I")
_MAX_BYTES = 1 << 28


class Closed(Exception):
    """The other side is gone, or says what is no frame."""


def write(descriptor: int, message: dict[str, Any]) -> None:
    """Write one message.

    Raises:
        OSError: If nobody reads.
    """
    payload = json.dumps(message).encode()
    data = memoryview(_HEADER.pack(len(payload)) + payload)
    while data:
        data = data[os.write(descriptor, data) :]


def read(descriptor: int) -> dict[str, Any]:
    """Read one message.

    Raises:
        Closed: If there is none.
    """
    (length,) = _HEADER.unpack(_exactly(descriptor, _HEADER.size))
    if length > _MAX_BYTES:
        raise Closed(f"a message of {length} bytes")
    try:
        message = json.loads(_exactly(descriptor, length))
    except ValueError as error:
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
