"""Bounds on the connections of a server: whoever is silent gives way to whoever comes.

A connection is a stranger's until a request of it was admitted (with the key, where one is asked for). Where strangers
are too many, of one address or of all, the one that was there longest and has no request running is closed: a client
that connects and asks is served beside any number that connect and wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict, defaultdict
from math import inf
from typing import Any, Protocol

ADMITTED = "turntree.admitted"
"""Key of an ASGI scope: the request had the key, or none is asked for."""
MAX_CONNECTIONS = 8192
"""Connections at once, admitted ones among them; a further one is closed if no stranger gives way."""
_MOST, _MOST_OF_ONE = 1024, 512
"""Strangers of all addresses, and of one."""
BACKLOG = 256
"""Connections that come in one turn of the loop; further ones wait in the system."""
_ROUND = 0.05
"""Seconds between two looks at whether strangers are too many."""


class Connection(Protocol):
    """What is bounded: a protocol of asyncio."""

    transport: Any

    def is_busy(self) -> bool:
        """Whether a request of it is running."""


class Strangers:
    """The connections that nothing was admitted of yet, in the order in which they came.

    Of those that are too many none is closed before the loop has looked twice at what came from it: many may come in
    one turn of the loop, and a client's request among them be still unread.

    Args:
        most: Of all addresses; four times as many are never held.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, most: int = _MOST, most_of_one: int = _MOST_OF_ONE) -> None:
        self._loop, self._most, self._most_of_one = loop, most, most_of_one
        self._came: OrderedDict[Connection, tuple[float, str]] = OrderedDict()  # when, and its address
        self._by_address: defaultdict[str, OrderedDict[Connection, None]] = defaultdict(OrderedDict)
        self._crowded: OrderedDict[str, None] = OrderedDict()  # addresses of too many
        self._looked = -inf  # those that came before have been looked at
        self._round: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._came)

    def add(self, connection: Connection, address: str) -> None:
        """Take one in; others may be closed for it, a little later."""
        self._came[connection] = self._loop.time(), address
        self._by_address[address][connection] = None
        if len(self._by_address[address]) > self._most_of_one:
            self._crowded[address] = None
        if len(self._came) > 4 * self._most:
            self.give_way()
        if self._round is None and (self._crowded or len(self._came) > self._most):
            self._looked = -inf
            self._round = self._loop.call_later(_ROUND, self._look)

    def give_way(self) -> bool:
        """Close the one that was there longest; whether there was one to close."""
        return self._close_first(self._came, inf)

    def remove(self, connection: Connection) -> None:
        """Leave one out that ended or was admitted; leaving it out twice does nothing."""
        if connection in self._came:
            _, address = self._came.pop(connection)
            self._by_address[address].pop(connection, None)
            if not self._by_address[address]:
                del self._by_address[address]

    def _look(self) -> None:
        """Close the first of too many that were there at the last look."""
        for address in list(self._crowded):
            same = self._by_address.get(address, OrderedDict())
            while len(same) > self._most_of_one and self._close_first(same, self._looked):
                pass
            if len(same) <= self._most_of_one:
                del self._crowded[address]
        while len(self._came) > self._most and self._close_first(self._came, self._looked):
            pass
        self._looked = self._loop.time()
        again = self._crowded or len(self._came) > self._most
        self._round = self._loop.call_later(_ROUND, self._look) if again else None

    def _close_first(self, among: OrderedDict[Connection, Any], before: float) -> bool:
        """Close the first that waits, if it came before a time."""
        for connection in among:
            if self._came[connection][0] >= before:
                return False
            if not connection.is_busy():
                self.remove(connection)  # its end is signalled later, when more may have come
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
