"""Assignment of dialogues to engine replicas.

All samples of a task and all turns of a dialogue go to one replica's store
and prefix cache. Each task has a home by rendezvous hashing, so that it finds
its own turns again in later epochs, and a lost replica moves only its own
tasks. A home that is full passes new tasks on to the next replica in the
task's order (consistent hashing with bounded loads: Mirrokni, Thorup and
Zadimoghaddam 2018), so that no replica keeps the others waiting.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

from turntree.agents.errors import AgentError
from turntree.spec_tree import DialogueState

R = TypeVar("R", bound=Hashable)


class NoReplicas(AgentError, RuntimeError):
    """Every replica is lost."""


def route_key(state: DialogueState) -> str:
    """The key that all turns of a task share; without a task, the state itself.

    >>> route_key(DialogueState(exact=7, task="12", env="sums"))
    'sums/12'
    """
    return f"{state.env}/{state.task}" if state.task else f"{state.env}#{state.exact:x}"


def preference(key: str, replicas: Iterable[R]) -> list[R]:
    """Replicas in the order of preference of ``key`` (rendezvous hashing).

    If a replica is removed the others keep their order.

    Args:
        replicas: Their names; only their text counts.
    """

    def weight(replica: R) -> bytes:
        return hashlib.blake2b(f"{len(key)}:{key}{replica}".encode(), digest_size=8).digest()

    return sorted(replicas, key=weight, reverse=True)


class TaskRoutes(Generic[R]):
    """Routes dialogues to replicas, and counts the dialogues of each. For one thread.

    Example:
        >>> routes = TaskRoutes(["a", "b"])
        >>> first = routes.acquire("sums/1")
        >>> routes.acquire("sums/1") == first
        True
        >>> routes.lose(first)
        >>> routes.acquire("sums/1") == first
        False
    """

    def __init__(self, replicas: Sequence[R], *, slack: float = 1.25) -> None:
        """Start with all replicas alive and idle.

        Args:
            slack: A replica that plays this many times its share takes no new tasks.

        Raises:
            ValueError: If there is no replica, or ``slack`` is below 1.
        """
        if not replicas:
            raise ValueError("routing needs at least one replica, got none")
        if not slack >= 1:
            raise ValueError(f"slack must be at least 1 (every replica its share), got {slack}")
        self._slack = slack
        self._live: dict[R, Counter[str]] = {}
        self._lost: set[R] = set()
        self._place: dict[str, R] = {}
        for replica in replicas:
            self.add(replica)

    @property
    def alive(self) -> list[R]:
        """Replicas that may be routed to, in the order of the constructor."""
        return [replica for replica in self._live if replica not in self._lost]

    @property
    def lost(self) -> list[R]:
        """Replicas that may not be routed to."""
        return [replica for replica in self._live if replica in self._lost]

    def loads(self) -> dict[R, int]:
        """Number of live dialogues of each replica."""
        return {replica: live.total() for replica, live in self._live.items()}

    def acquire(self, key: str) -> R:
        """Assign one dialogue to a replica; live dialogues of one key share a replica.

        Raises:
            NoReplicas: If all are lost.
        """
        alive = self.alive
        if not alive:
            raise NoReplicas(f"all {len(self._live)} engine replicas are lost")
        replica = self._place.get(key)
        if replica is None or replica in self._lost:
            wanted = preference(key, alive)
            load = {one: self._live[one].total() for one in wanted}
            most = math.ceil(self._slack * (sum(load.values()) + 1) / len(wanted))
            replica = next((one for one in wanted if load[one] < most), wanted[0])
            self._place[key] = replica
        self._live[replica][key] += 1
        return replica

    def hold(self, key: str, replica: R) -> bool:
        """Count one more dialogue at a given replica, as ``acquire`` would; ``False`` if it is lost."""
        if replica in self._lost or replica not in self._live:
            return False
        self._place.setdefault(key, replica)
        self._live[replica][key] += 1
        return True

    def release(self, key: str, replica: R) -> None:
        """Record that a dialogue placed by ``acquire`` has ended."""
        live = self._live.get(replica)
        if live is None or not live[key]:
            return
        live[key] -= 1
        if not live[key]:
            del live[key]
            if self._place.get(key) == replica:
                del self._place[key]

    def add(self, replica: R) -> None:
        """Add a replica; a lost one of that name is forgotten with its dialogues."""
        self._live[replica] = Counter()
        self._lost.discard(replica)

    def lose(self, replica: R) -> None:
        """Route nothing more to a replica; the caller places its dialogues again."""
        if replica in self._live:
            self._lost.add(replica)

    def restore(self, replica: R) -> None:
        """Mark a lost replica as alive."""
        if replica in self._lost:
            self.add(replica)
