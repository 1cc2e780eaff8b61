"""Assignment of dialogues to engine replicas.

All samples of a task and all turns of a dialogue go to one engine replica, and so to one draft store and prefix
cache. Rendezvous hashing gives each task an owner replica: the task finds its own turns there in later epochs, and
only the tasks of a failed replica move. If the owner has more than its share of dialogues, a new task goes to the next
replica in the task's order (consistent hashing with bounded loads: Mirrokni, Thorup and Zadimoghaddam 2018), so that
no overloaded replica keeps all others waiting.
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
    """Every replica has failed."""


def route_key(state: DialogueState) -> str:
    """Return the key that all turns of a task share; without a task, a key of the state.

    >>> route_key(DialogueState(exact=7, task="12", env="sums"))
    'sums/12'
    """
    return f"{state.env}/{state.task}" if state.task else f"{state.env}#{state.exact:x}"


def preference(key: str, replicas: Iterable[R]) -> list[R]:
    """Return the replicas in the order of preference of ``key`` (rendezvous hashing).

    Removing a replica does not change the order of the remaining replicas. The order depends on ``str(replica)``.
    """

    def weight(replica: R) -> bytes:
        return hashlib.blake2b(f"{len(key)}:{key}{replica}".encode(), digest_size=8).digest()

    return sorted(replicas, key=weight, reverse=True)


class TaskRoutes(Generic[R]):
    """Routes dialogues to replicas and counts the dialogues of each. For one thread.

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
        """Start with all replicas alive; at ``slack`` times its share of dialogues a replica takes no new tasks.

        Raises:
            ValueError: If there is no replica, or ``slack`` is below 1.
        """
        if not replicas:
            raise ValueError("expected at least one replica, got none")
        if not slack >= 1:
            raise ValueError(f"slack must be at least 1 (each replica takes its share), got {slack}")
        self._slack = slack
        self._live: dict[R, Counter[str]] = {}  #: number of running dialogues by key, for each replica
        self._lost: set[R] = set()
        self._assigned: dict[str, R] = {}  #: replica of each key that has running dialogues
        for replica in replicas:
            self.add(replica)

    @property
    def alive(self) -> list[R]:
        return [replica for replica in self._live if replica not in self._lost]

    @property
    def lost(self) -> list[R]:
        return [replica for replica in self._live if replica in self._lost]

    def loads(self) -> dict[R, int]:
        return {replica: live.total() for replica, live in self._live.items()}

    def acquire(self, key: str) -> R:
        """Assign one dialogue to a replica; running dialogues of one key share a replica.

        Raises:
            NoReplicas: If all have failed.
        """
        alive = self.alive
        if not alive:
            raise NoReplicas(f"all {len(self._live)} engine replicas have failed")
        replica = self._assigned.get(key)
        if replica is None or replica in self._lost:
            wanted = preference(key, alive)
            load = {one: self._live[one].total() for one in wanted}
            most = math.ceil(self._slack * (sum(load.values()) + 1) / len(wanted))
            replica = next((one for one in wanted if load[one] < most), wanted[0])
            self._assigned[key] = replica
        self._live[replica][key] += 1
        return replica

    def hold(self, key: str, replica: R) -> bool:
        """Count one more dialogue at ``replica``, as ``acquire`` would; return ``False`` if the replica has failed."""
        if replica in self._lost or replica not in self._live:
            return False
        self._assigned.setdefault(key, replica)
        self._live[replica][key] += 1
        return True

    def release(self, key: str, replica: R) -> None:
        live = self._live.get(replica)
        if live is None or not live[key]:
            return
        live[key] -= 1
        if not live[key]:
            del live[key]
            if self._assigned.get(key) == replica:
                del self._assigned[key]

    def add(self, replica: R) -> None:
        """Add a replica, or replace a failed replica of the same name and forget its dialogues."""
        self._live[replica] = Counter()
        self._lost.discard(replica)

    def lose(self, replica: R) -> None:
        """Route nothing more to a failed replica; the caller reassigns its dialogues."""
        if replica in self._live:
            self._lost.add(replica)

    def restore(self, replica: R) -> None:
        if replica in self._lost:
            self.add(replica)
