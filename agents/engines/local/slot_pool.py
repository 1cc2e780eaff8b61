"""Allocation of cache slots, each of which holds the keys and values of one sequence.

A slot is live (a request runs in it), parked (it keeps a finished turn for the dialogue's next turn) or free. A request
continues a parked slot, copies a shared prefix to its own slot, or starts with an empty slot. Without a free slot it
takes a parked one: those of precomputed turns first, then the least recently parked. Prefixes are copied when
``runnable`` is called, all copies of one slot together.

A precomputed request (sampled before its caller needs it) never keeps a slot from a request that is needed now: it is
admitted only if no other request waits, and ends with its tokens so far as soon as its slot is needed.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from turntree.agents.engines.local.config import LocalEngineConfig
from turntree.agents.engines.local.forward.slots import SlotCache
from turntree.agents.engines.local.request import Request

BLOCK = 8  #: tokens hashed together; shorter common prefixes are not shared


class PrefixMatch(NamedTuple):
    slot: int  #: slot with the longest common prefix, -1 if there is none
    length: int  #: tokens in common


# A slot is indexed by the hash of each prefix of its tokens that consists of whole blocks. Slots with the same hash are
# compared token by token, so a hash collision costs time, never correctness.
class PrefixIndex:
    def __init__(self) -> None:
        self._tokens: dict[int, Sequence[int]] = {}
        self._chains: dict[int, list[int]] = {}  #: hashes of each slot's prefixes, one per block
        self._slots: dict[int, dict[int, None]] = {}  #: slots that have a prefix of this hash, oldest first

    def put(self, slot: int, tokens: Sequence[int]) -> None:
        """Record that ``slot`` holds ``tokens``, replacing its earlier tokens."""
        self.remove(slot)
        chain = _chain(tokens)
        self._tokens[slot] = tokens
        self._chains[slot] = chain
        for key in chain:
            self._slots.setdefault(key, {})[slot] = None

    def remove(self, slot: int) -> None:
        self._tokens.pop(slot, None)
        for key in self._chains.pop(slot, ()):
            holders = self._slots[key]
            del holders[slot]
            if not holders:
                del self._slots[key]

    def tokens(self, slot: int) -> Sequence[int]:
        return self._tokens.get(slot, ())

    def match(self, prompt: Sequence[int], *, free: Container[int] = (), candidates: int = 8) -> PrefixMatch:
        """Return the slot with the longest common prefix; prefixes shorter than a block are not found.

        Compares the newest ``candidates`` slots for each of the two longest known chains of blocks. ``free`` slots can
        be continued in place, without a copy: if the prompt begins with all tokens of such a slot, it is preferred to a
        slot that shares less than a block more.
        """
        chains: list[dict[int, None]] = []
        for key in _chain(prompt):
            found = self._slots.get(key)
            if not found:
                break
            chains.append(found)
        best, worth = PrefixMatch(-1, 0), 0
        for holders in reversed(chains[-2:]):
            for slot, _ in zip(reversed(holders), range(candidates), strict=False):
                tokens = self._tokens[slot]
                length = common_prefix(tokens, prompt)
                in_place = length == len(tokens) and slot in free
                if length + in_place * (BLOCK - 1) > worth:
                    best, worth = PrefixMatch(slot, length), length + in_place * (BLOCK - 1)
        return best


def _chain(tokens: Sequence[int]) -> list[int]:
    chain, key = [], 0
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        key = hash((key, *tokens[end - BLOCK : end]))
        chain.append(key)
    return chain


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


class SlotPool:
    def __init__(self, cache: SlotCache) -> None:
        self._cache = cache
        self._index = PrefixIndex()
        self._free = list(range(cache.slots))
        self._parked: dict[int, None] = {}
        self._live: dict[int, Request] = {}
        self._copies: dict[tuple[int, int], list[int]] = {}  #: slots to copy to, by source slot and number of tokens
        self._targets: set[int] = set()  #: slots that these copies write to

    @property
    def live(self) -> list[Request]:
        return [self._live[slot] for slot in sorted(self._live)]

    def assign(self, request: Request) -> bool:
        """Give ``request`` a slot with the longest known prefix; return ``False`` if no slot is free."""
        # The last token of the prompt is always computed, since its logits are needed.
        wanted = len(request.prompt) - 1
        match = self._index.match(request.prompt, free=self._parked)
        source, length = match.slot, min(match.length, wanted)
        if source in self._parked and length == len(self._index.tokens(source)):
            del self._parked[source]
            self._occupy(request, source, length)
            return True
        # The request in the source slot may still be computing its prompt. If enough of the prefix is missing, wait
        # for that request, the leader, instead of computing the prefix twice.
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

        A request with a leader is left out until the leader has computed their common prefix.
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
        # Copies are batched by source, so a slot must not be both source and target within one batch.
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
        if request.ahead:  # to the front, to be taken first: the training step's own dialogues go on sooner
            self._parked = {slot: None, **self._parked}
        else:
            self._parked[slot] = None

    def forget(self) -> None:  # drops all keys and values: live requests compute theirs again
        for slot in self._parked:
            self._index.remove(slot)
            heapq.heappush(self._free, slot)
        self._parked.clear()
        for request in self._live.values():
            request.computed = 0
            request.leader = None


class WaitQueue:
    def __init__(self, config: LocalEngineConfig, pool: SlotPool) -> None:
        self._config = config
        self._pool = pool
        self._wanted: deque[Request] = deque()  #: requests that are needed now
        self._ahead: deque[Request] = deque()  #: precomputed requests

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
