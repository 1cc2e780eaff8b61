"""Allocation of cache slots: a parked slot that the request continues, a copy of a shared prefix, or a free slot.

A slot is live, parked or free. A parked slot keeps a finished turn for the dialogue's next turn. Slots of
precomputed turns are reused first, then the least recently parked ones. Prefixes are copied when ``runnable`` is
called, all copies of one slot together.
"""

from __future__ import annotations

import heapq

from turntree.agents.engines.local.forward.slots import SlotCache
from turntree.agents.engines.local.prefix import BLOCK, PrefixIndex, common_prefix
from turntree.agents.engines.local.request import Request


class SlotPool:
    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self._index = PrefixIndex()
        self._free = list(range(cache.slots))
        self._parked: dict[int, None] = {}
        self._live: dict[int, Request] = {}
        self._copies: dict[tuple[int, int], list[int]] = {}  #: slots to copy to, by source slot and number of tokens
        self._targets: set[int] = set()

    @property
    def live(self) -> list[Request]:
        return [self._live[slot] for slot in sorted(self._live)]

    def place(self, request: Request) -> bool:
        """Give ``request`` a slot with the longest known prefix; return ``False`` if no slot is free."""
        wanted = len(request.prompt) - 1
        match = self._index.match(request.prompt, free=self._parked)
        source, length = match.slot, min(match.length, wanted)
        if source in self._parked and length == len(self._index.tokens(source)):
            del self._parked[source]
            self._occupy(request, source, length)
            return True
        owner = self._live.get(source)
        if owner is not None and owner.computed < length:
            if length - owner.computed >= BLOCK:
                first = owner.leader
                same = first is not None and first.prompt[:length] == request.prompt[:length]
                request.leader = first if same else owner
            length = owner.computed
        slot = self._take(keep=source)
        if slot is None:
            return False
        if length and request.leader is None:
            self._copy(source, slot, length)
        self._occupy(request, slot, 0 if request.leader else length)
        return True

    def _occupy(self, request: Request, slot: int, computed: int) -> None:
        request.slot, request.computed, request.cached = slot, computed, computed
        self._live[slot] = request
        self._index.put(slot, request.prompt)

    def _take(self, keep: int) -> int | None:
        if self._free:
            return heapq.heappop(self._free)
        for slot in self._parked:
            if slot != keep or len(self._parked) == 1:
                del self._parked[slot]
                return slot
        return None

    def runnable(self) -> list[Request]:
        """Return the requests that can run now, in the order of their slots.

        The others wait for the prefix that their leader computes.
        """
        rows = [request for request in self.live if self._follow(request)]
        self._make_copies()
        return rows

    def _follow(self, request: Request) -> bool:
        leader = request.leader
        if leader is None:
            return True
        leads = self._live.get(leader.slot) is leader
        if leads or leader.slot in self._parked:
            shared = common_prefix(self._index.tokens(leader.slot), request.prompt)
            length = min(shared, len(request.prompt) - 1)
            if leads and leader.computed < length:
                return False
            if length:
                self._copy(leader.slot, request.slot, length)
                request.computed = request.cached = length
        request.leader = None
        return True

    def _copy(self, source: int, target: int, length: int) -> None:
        if source in self._targets or target in self._targets or any(target == one for one, _ in self._copies):
            self._make_copies()
        self._copies.setdefault((source, length), []).append(target)
        self._targets.add(target)

    def _make_copies(self) -> None:
        for (source, length), targets in self._copies.items():
            self._cache.copy(source, targets, length)
        self._copies.clear()
        self._targets.clear()

    def park(self, request: Request) -> None:
        slot = request.slot
        del self._live[slot]
        if request.computed < BLOCK:
            self._index.remove(slot)
            heapq.heappush(self._free, slot)
            return
        self._index.put(slot, request.tokens[: request.computed])
        if request.ahead:  # given away first: dialogues of this step need theirs sooner
            self._parked = {slot: None, **self._parked}
        else:
            self._parked[slot] = None

    def forget(self) -> None:
        for slot in self._parked:
            self._index.remove(slot)
            heapq.heappush(self._free, slot)
        self._parked.clear()
        for request in self._live.values():
            request.computed = 0
            request.leader = None
