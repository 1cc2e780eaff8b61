"""Allocation of cache slots: a parked one that the request continues, a copy of a shared prefix, or a free one.

Invariant: a slot is live, parked or free. A parked slot holds a finished turn
for the dialogue's next one. Those of precomputed turns are given away first,
then the least recently parked.

Prefixes are copied when ``runnable`` is called, those from one slot together.
"""

from __future__ import annotations

import heapq

from turntree.agents.engines.local.forward.slots import SlotCache
from turntree.agents.engines.local.prefix import BLOCK, PrefixIndex, common_prefix
from turntree.agents.engines.local.request import Request


class SlotPool:
    """Allocates the slots of a cache."""

    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self._index = PrefixIndex()
        self._free = list(range(cache.slots))
        self._parked: dict[int, None] = {}
        self._live: dict[int, Request] = {}
        self._copies: dict[tuple[int, int], list[int]] = {}
        """Slots to copy to, by the slot to copy from and the number of tokens."""
        self._targets: set[int] = set()

    @property
    def live(self) -> list[Request]:
        """Requests that hold a slot, in the order of their slots."""
        return [self._live[slot] for slot in sorted(self._live)]

    def place(self, request: Request) -> bool:
        """Give ``request`` a slot with the longest known prefix. The last token of the prompt
        is always computed, since its logits are needed.

        Returns:
            Whether a slot was free.
        """
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
        """Requests that may run now, in the order of their slots; all but those that wait for a leader's prefix."""
        rows = [request for request in self.live if self._follow(request)]
        self._make_copies()
        return rows

    def _follow(self, request: Request) -> bool:
        """Copy the leader's prefix as soon as it is computed; returns whether the request may run now."""
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
        """Keep the keys and values of a finished turn for the dialogue's next one."""
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
        """Drop all keys and values, since the weights have changed."""
        for slot in self._parked:
            self._index.remove(slot)
            heapq.heappush(self._free, slot)
        self._parked.clear()
        for request in self._live.values():
            request.computed = 0
            request.leader = None
