"""Keep one worker's ended groups, and choose the groups to re-verify after a weight update.

A group is all samples of one task in one step. An ended group waits in verl's queue until the policy is trained on it.
The trainer announces the weight version of its step. Groups of an earlier version are stale: the new policy re-verifies
them (its tokens for the same seeds replace the old ones), and their new rows replace the old rows.

Newer weights in the engines do not count until the trainer begins its next step. Until then, this worker still lists
the groups of the last step, and re-verifying these groups would submit them again.

If each step is trained on the groups that were submitted first (``in_order``), groups of later steps are not
re-verified yet: one re-verification under the weights of their own step is enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from typing import Any, NamedTuple


class EndedGroup(NamedTuple):
    """A group as last written to verl's queue."""

    row: dict[str, Any]
    keys: Sequence[str]  #: names of the group's rows in verl's queue
    version: int  #: weight version of all turns of the group


class InterruptedGroups:
    def __init__(self) -> None:
        self.ended: dict[str, EndedGroup] = {}
        self._in_transit: set[str] = set()  # groups being re-verified or written to the queue
        self._version = 0
        self._due: Container[str] | None = None
        # Hold this lock from listing verl's queue until ``begin_step`` returns, so that listings are applied in order.
        self.listing = asyncio.Lock()

    def begin_step(self, version: int, held: Container[str], due: Container[str] | None = None) -> list[str]:
        """Begin a step with weights ``version``; return and forget the groups that were trained on."""
        # ``held``: groups still in verl's queue. ``due``: groups that this step may train on; ``None``: any group.
        self._version, self._due = version, due
        trained = [uid for uid in self.ended if uid not in held and uid not in self._in_transit]
        for uid in trained:
            del self.ended[uid]
        return trained

    def take_stale(self) -> list[str]:
        """Return the groups to re-verify now. These groups count as in transit until ``handed_over``."""
        groups = self.ended.items()
        stale = [uid for uid, group in groups if group.version < self._version and uid not in self._in_transit]
        stale = [uid for uid in stale if self._due is None or uid in self._due]
        self._in_transit |= set(stale)
        return stale

    def end(self, uid: str, group: EndedGroup) -> Sequence[str] | None:
        """Store an ended group and mark it as in transit; return the names of the rows that the group replaces."""
        self._in_transit.add(uid)
        replaced = self.ended[uid].keys if uid in self.ended else None
        self.ended[uid] = group
        return replaced

    def forget(self, uid: str) -> None:
        self.ended.pop(uid, None)
        self._in_transit.discard(uid)

    def handed_over(self, uids: Iterable[str]) -> None:
        self._in_transit.difference_update(uids)
