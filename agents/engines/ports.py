from __future__ import annotations

import random
import socket
from contextlib import suppress

#: above the ports of Ray's workers (10,002 to 19,999), below Linux's ephemeral ports (from 32,768)
_RANGE = range(20_000, 32_000)


def free_port() -> int:
    """Return a port on which nothing listens and which no connection will take.

    SGLang derives another port from it, 10,000 higher, which is valid as well.

    Raises:
        OSError: If none was found.
    """
    for port in random.SystemRandom().sample(_RANGE, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"none of 100 ports between {_RANGE.start} and {_RANGE.stop} was free")
