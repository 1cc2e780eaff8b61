"""Queue of waiting requests, and their admission to slots.

A precomputed request never keeps a slot from a request that is needed now: it is admitted only if no other
request waits, and ends with its tokens so far as soon as one does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from turntree.agents.engines.local.config import LocalEngineConfig
from turntree.agents.engines.local.request import Request
from turntree.agents.engines.local.slot_pool import SlotPool


class WaitQueue:
    def __init__(self, config: LocalEngineConfig, pool: SlotPool) -> None:
        self._config = config
        self._pool = pool
        self._wanted: deque[Request] = deque()
        self._ahead: deque[Request] = deque()

    def __len__(self) -> int:
        return len(self._wanted) + len(self._ahead)

    def add(self, request: Request) -> None:
        (self._ahead if request.ahead else self._wanted).append(request)

    def take(self, leaves: Callable[[Request], bool]) -> list[Request]:
        """Remove and return the requests for which ``leaves`` returns true."""
        gone = [request for line in (self._wanted, self._ahead) for request in line if leaves(request)]
        for request in gone:
            (self._ahead if request.ahead else self._wanted).remove(request)
        return gone

    def preempted(self) -> list[Request]:
        """Return live precomputed requests whose slots are needed, fewest tokens first; end them before ``admit``."""
        live = self._pool.live
        ahead = sorted((request for request in live if request.ahead), key=lambda request: request.sampled)
        return ahead[: max(0, len(self._wanted) + len(live) - self._config.max_batch)]

    def admit(self) -> None:
        live = self._pool.live
        free = self._config.max_batch - len(live)
        free -= self._assign(self._wanted, free)
        if self._ahead and not self._wanted:
            held = sum(request.ahead for request in live)
            self._assign(self._ahead, min(free, (self._config.precomputed_slots or self._config.max_batch) - held))

    def _assign(self, line: deque[Request], most: int) -> int:
        assigned = 0
        while line and assigned < most and self._pool.assign(line[0]):
            line.popleft()
            assigned += 1
        return assigned
