"""Ports for servers and engines that listen at them later than they are chosen."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

_RANGE = range(20_000, 32_000)
"""Above the ports of Ray's workers (10,002 to 19,999), below those that Linux gives to connections (from 32,768)."""


def free_port() -> int:
    """A port that nobody listens at, and that no connection will be given meanwhile; so low that what SGLang derives
    from it, 10,000 more, is a port too.

    Raises:
        OSError: If none was found.
    """
    for port in random.SystemRandom().sample(_RANGE, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"none of 100 ports between {_RANGE.start} and {_RANGE.stop} was free")
