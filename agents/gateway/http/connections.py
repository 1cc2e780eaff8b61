"""Bounds on the connections of a server: whoever is silent gives way to whoever comes.

A connection is a stranger's until a request of it was admitted (with the key, where one is asked for). Where strangers
are too many, of one address or of all, the one that was there longest and has no request running is closed: a client
that connects and asks is served beside any number that connect and wait.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, Protocol

ADMITTED = "turntree.admitted"
"""Key of an ASGI scope: the request had the key, or none is asked for."""
MAX_CONNECTIONS = 2048
"""Connections at once, admitted ones among them; a further one is closed if no stranger gives way."""
MAX_STRANGERS = 512
"""Of one address."""
_NEW = 0.2
"""Seconds within which a connection may send its request before it gives way."""


class Connection(Protocol):
    """What is bounded: a protocol of asyncio."""

    transport: Any

    def is_busy(self) -> bool:
        """Whether a request of it is running."""
        ...


class Strangers:
    """The connections that nothing was admitted of yet, in the order in which they came.

    Args:
        clock: Seconds.
        most: Of all addresses.
        most_of_one: Of one address.
    """

    def __init__(
        self, clock: Callable[[], float], *, most: int = MAX_CONNECTIONS // 2, most_of_one: int = MAX_STRANGERS
    ) -> None:
        self._clock, self._most, self._most_of_one = clock, most, most_of_one
        self._came: OrderedDict[Connection, tuple[float, str]] = OrderedDict()  # when, and its address
        self._by_address: defaultdict[str, OrderedDict[Connection, None]] = defaultdict(OrderedDict)

    def __len__(self) -> int:
        return len(self._came)

    def add(self, connection: Connection, address: str) -> None:
        """Take one in; another one may be closed for it."""
        self._came[connection] = self._clock(), address
        same = self._by_address[address]
        same[connection] = None
        if len(same) > self._most_of_one:
            self._give_way(same)
        if len(self._came) > self._most:
            self._give_way(self._came)

    def give_way(self) -> bool:
        """Close the one that was there longest; whether there was one to close."""
        return self._give_way(self._came, new=0.0)

    def remove(self, connection: Connection) -> None:
        """Leave one out that ended or was admitted; leaving it out twice does nothing."""
        if connection in self._came:
            _, address = self._came.pop(connection)
            self._by_address[address].pop(connection, None)
            if not self._by_address[address]:
                del self._by_address[address]

    def _give_way(self, among: OrderedDict[Connection, Any], new: float = _NEW) -> bool:
        """Close the first that waits; those that have just come are spared while they are not too many."""
        for connection in among:
            if self._clock() - self._came[connection][0] < new and len(self._came) < 2 * self._most:
                return False
            if not connection.is_busy():
                self.remove(connection)  # it hears of its end later, when more may have come
                connection.transport.abort()
                return True
        return False


def raise_file_limit(most: int = 1 << 16) -> None:
    """Let this process open as many files as the system allows it, up to ``most``: each connection is one."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
